# validator-gw. "make" lists the targets. Knobs are given as NAME=value, for instance "make test PKG=./internal/api RUN=Quota".

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS   += --no-print-directory

GO      ?= go
TOOL    := $(GO) tool -modfile=tools/go.mod
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)

PKG      ?= ./...
# Packages with stories of days and weeks in simulated time, for which the race detector is too slow: a second pass runs them whole.
DAYS     := ./internal/validate ./internal/revalidate ./internal/backfill ./internal/world
# Packages with stories in real time, of several gateways at once: one package after the other, after all others, or what the
# stories are about is how busy the machine is.
STORIES  := ./internal/gateway ./internal/ratelimit ./internal/flight ./internal/fallback ./internal/soak ./cmd/validator-gw
RUN      ?=
COUNT    ?=
RACE     ?= -race
BENCH    ?= .
FUZZTIME ?= 30s
FUZZ     ?= ^Fuzz
SEEDS    ?= 100
SEED     ?=
N        ?= 10000
ONLY     ?=
PROFILE  ?= phases
RATE     ?=
MINUTES  ?=
STORE    ?=
GATEWAYS ?=
ARGS     ?=

# The packages that the lists of domains are made of. Who wants newer ones changes the versions here, and reads the difference.
DISPOSABLE ?=
FREEMAIL   ?=
DISPOSABLE_PACKAGE := disposable-email-domains-js@1.26.0
FREEMAIL_PACKAGE   := freemail@1.7.0

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/validator-gw, static [VERSION=v1.2.3]
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/validator-gw ./cmd/validator-gw

.PHONY: run
run: build ## Run the gateway with no set-up, against a simulated upstream [ARGS='--listen 127.0.0.1:8081 --metrics-listen 127.0.0.1:9091']
	bin/validator-gw dev $(ARGS)

# The launcher finds a Postgres and a Redis, says how, and removes them at the end. TEST_ENV=docker or local keeps it to
# one way, TEST_DATABASE_URL and TEST_REDIS_URL name servers that are there.
bin/testenv: FORCE
	@$(GO) build $(RACE) -o $@ ./internal/testenv/cmd/testenv

.PHONY: test
test: bin/testenv ## Run the tests [PKG=./internal/api RUN=Name COUNT=2 RACE= TEST_ENV=docker|local]
	$(if $(filter-out ./...,$(PKG)),bin/testenv run -- $(GO_TEST) $(RACE) $(PKG),$(ALL_TESTS))

GO_TEST = $(GO) test -shuffle=on $(if $(RUN),-run '$(RUN)') $(if $(COUNT),-count=$(COUNT))
define ALL_TESTS
packages=$$($(GO) list ./... | grep -vxF "$$($(GO) list $(STORIES))"); bin/testenv run -- $(GO_TEST) $(RACE) $$packages
	bin/testenv run -- $(GO_TEST) $(RACE) -p 1 $(STORIES)
	$(if $(RACE),$(GO_TEST) $(DAYS))
endef

.PHONY: check
check: format vet lint generated vulnerabilities test ## All that has to hold before a commit lands

.PHONY: format
format: ## Fail where gofmt would change a file
	@bad=$$(find . -name '*.go' -not -path './.git/*' -print0 | xargs -0 gofmt -l); \
	if [ -n "$$bad" ]; then echo "gofmt would change:"; echo "$$bad"; exit 1; fi

.PHONY: vet
vet: ## go vet
	$(GO) vet $(PKG)

.PHONY: lint
lint: ## golangci-lint, with the import arrows; the first run compiles it, which takes a minute or two [PKG=./internal/api]
	$(TOOL) golangci-lint run $(PKG)

.PHONY: generate
generate: ## Write the generated code anew
	$(GO) generate ./...

.PHONY: generated
generated: ## Fail where the generated code is not what "make generate" writes
	@sums() { find . -name '*.gen.go' -not -path './.git/*' -print0 | sort -z | xargs -0 -r cksum; }; \
	before=$$(sums); $(GO) generate ./...; after=$$(sums); \
	if [ "$$before" != "$$after" ]; then \
	  echo "generated code was out of date; it has been written anew:"; \
	  diff <(echo "$$before") <(echo "$$after") || true; exit 1; fi

.PHONY: lists
lists: ## Write the embedded lists of domains anew, from npm or from files [DISPOSABLE=path/to.tgz FREEMAIL=path/to.tgz]
	@disposable='$(DISPOSABLE)'; freemail='$(FREEMAIL)'; fetched=; \
	fetch() { \
	  command -v npm >/dev/null || { echo "npm is not installed: install it, or give the packages as files (make help)" >&2; exit 1; }; \
	  [ -n "$$fetched" ] || { fetched=$$(mktemp -d); trap 'rm -rf "$$fetched"' EXIT; }; \
	  file=$$(cd "$$fetched" && npm pack --silent --fetch-retries=0 --fetch-timeout=30000 "$$1") || { \
	    echo "$$1 can't be had from npm's registry: give the packages as files (make help)" >&2; exit 1; }; \
	  file="$$fetched/$$file"; \
	}; \
	if [ -z "$$disposable" ]; then fetch $(DISPOSABLE_PACKAGE); disposable=$$file; fi; \
	if [ -z "$$freemail" ]; then fetch $(FREEMAIL_PACKAGE); freemail=$$file; fi; \
	$(GO) run ./internal/normalize/makelists -disposable "$$disposable" -free "$$freemail"

# Exit code 3 means that something was found. Where the database can't be reached, it says so and goes on.
.PHONY: vulnerabilities
vulnerabilities: ## govulncheck, where its database can be reached
	@code=0; out=$$($(TOOL) govulncheck ./... 2>&1) || code=$$?; \
	if [ $$code = 0 ]; then echo "govulncheck: nothing found"; \
	elif [ $$code != 3 ] && grep -qE 'vuln\.go\.dev|dial tcp|no such host|i/o timeout|connection refused' <<<"$$out"; then \
	  echo "**** govulncheck WAS NOT RUN: its database can't be reached from here ****"; \
	else echo "$$out"; exit 1; fi

.PHONY: bench
bench: bin/testenv ## Run the benchmarks [PKG=./internal/normalize BENCH=Parse COUNT=6]
	bin/testenv run -- $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem $(if $(COUNT),-count=$(COUNT)) $(PKG)

.PHONY: fuzz
fuzz: ## Fuzz each target for a while [PKG=./internal/normalize FUZZ=Parse FUZZTIME=10m]
	@found=; for pkg in $$($(GO) list $(PKG)); do \
	  for target in $$($(GO) test -list '$(FUZZ)' $$pkg | grep '^Fuzz' || true); do \
	    found=1; echo "fuzz $$pkg $$target for $(FUZZTIME)"; \
	    $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s $$pkg; \
	  done; \
	done; [ -n "$$found" ] || { echo "no fuzz target matches"; exit 1; }

.PHONY: world
world: ## Play simulated days against the whole gateway [SEEDS=1000, or SEED=42 for one of them]
	$(GO) test ./internal/world -run '^TestWorld$$' -count=1 -v -timeout 0 $(if $(SEED),-world.seed=$(SEED),-world.seeds=$(SEEDS))

.PHONY: histories
histories: ## Play histories of one address over three replicas and a Redis in trouble, and check each [N=10000 SEED=7 ONLY=1354 RACE=]
	$(GO) test $(RACE) ./internal/flight -run '^TestHistories$$' -count=1 -v -timeout 0 -flight.histories=$(N) $(if $(SEED),-flight.seed=$(SEED)) \
	  $(if $(ONLY),-flight.only=$(ONLY))

# Exit code 1 means that a promise is broken: the table names it. docs/soak.md says what each profile plays.
.PHONY: soak
soak: build ## Run the gateway under load and faults, and check its promises [PROFILE=phases|fleet|redis-hang|blip|slow|campaign|day|day-kill RATE=200 MINUTES=3 SEED=7 STORE=postgres|sqlite GATEWAYS=1]
	@$(GO) build -o bin/soak ./internal/soak/cmd/soak
	bin/soak -profile $(PROFILE) $(if $(RATE),-rate $(RATE)) $(if $(MINUTES),-minutes $(MINUTES)) $(if $(SEED),-seed $(SEED)) \
	  $(if $(STORE),-store $(STORE)) $(if $(GATEWAYS),-gateways $(GATEWAYS)) $(ARGS)

# The gateway and the bare handler take turns; compare what one run says, not runs.
.PHONY: bench-cached
bench-cached: build ## What a cached answer costs over HTTP, beside a bare net/http handler [ARGS='-rounds 12 -round 1s -connections 16 -profile /tmp/profiles']
	@$(GO) build -o bin/cached ./internal/soak/cmd/cached
	bin/cached $(ARGS)

.PHONY: clean
clean: ## Remove what was built (data/, where "make run" keeps its store, stays)
	rm -rf bin

.PHONY: FORCE
FORCE:
