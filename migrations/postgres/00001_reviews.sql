-- +goose Up

-- What could not be answered in time, and how it went on. Wide and rarely changed; the work itself is review_queue.
CREATE TABLE reviews (
    id          uuid        PRIMARY KEY,
    fingerprint bytea       NOT NULL CHECK (octet_length(fingerprint) = 16),
    domain_key  bigint      NOT NULL,
    address     bytea,      -- sealed; the id is the seal's context
    state       text        NOT NULL CHECK (state IN ('open', 'settled', 'dead')),
    reason      text        NOT NULL,
    cause       text        NOT NULL CHECK (cause IN ('upstream', 'mailbox', 'unusable')),
    trail       jsonb       NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(trail) = 'array'),
    verdict     jsonb,
    recorded_at timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    ended_at    timestamptz,
    CONSTRAINT reviews_ended        CHECK ((state = 'open') = (ended_at IS NULL)),
    CONSTRAINT reviews_verdict      CHECK ((state = 'settled') = (verdict IS NOT NULL)),
    CONSTRAINT reviews_keep_address CHECK (state = 'settled' OR address IS NOT NULL)
) WITH (fillfactor = 90); -- a postponement changes no indexed column, so its new version fits the same page

-- Makes Record an upsert: a hundred who wait for one address share one review.
CREATE UNIQUE INDEX reviews_open_fingerprint ON reviews (fingerprint) WHERE state = 'open';
-- For the sweep and for counting dead rows.
CREATE INDEX reviews_ended_at ON reviews (state, ended_at) WHERE state <> 'open';

-- Who waits for a review: each has its own policy and its own callback.
CREATE TABLE review_watchers (
    review_id uuid NOT NULL REFERENCES reviews ON DELETE CASCADE,
    client    text NOT NULL,
    flow      text NOT NULL,
    callback  text NOT NULL,
    PRIMARY KEY (review_id, client, flow, callback)
);

-- Fences leases: no two claims of a row ever have the same token. 0 is no lease.
CREATE SEQUENCE review_lease AS bigint START 1 CACHE 1;

-- Outstanding work. A row exists exactly while its review is open. Kept narrow, since every claim rewrites it.
-- Leased means lease_token <> 0 AND due_at > now(); a row whose lease ran out is simply due.
CREATE TABLE review_queue (
    review_id   uuid        PRIMARY KEY REFERENCES reviews,
    domain_key  bigint      NOT NULL CHECK (domain_key >= 0),
    due_at      timestamptz NOT NULL,
    lease_token bigint      NOT NULL DEFAULT 0 CHECK (lease_token >= 0),
    outage_ms   bigint      NOT NULL DEFAULT 0, -- waited on the upstream's side
    attempts    integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    snoozes     integer     NOT NULL DEFAULT 0 CHECK (snoozes >= 0),
    unusable    integer     NOT NULL DEFAULT 0 CHECK (unusable >= 0),
    claims      integer     NOT NULL DEFAULT 0 CHECK (claims >= 0),
    priority    smallint    NOT NULL CHECK (priority IN (0, 10, 20)),
    cause       text        NOT NULL CHECK (cause IN ('upstream', 'mailbox', 'unusable'))
) WITH (
    -- No fillfactor: a claim changes an indexed column, so free space in the page would buy nothing. Dead
    -- versions are what slows a queue down, so they are taken away early and at full speed.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- The first pass of a claim: jump from domain to domain, then the earliest due of each priority.
CREATE INDEX review_queue_domain ON review_queue (domain_key, priority, due_at, review_id);
-- The second pass, the oldest overdue row, and the counts. Three equality probes stand for one order by priority.
CREATE INDEX review_queue_due ON review_queue (priority, due_at);

-- Every verdict that was paid for, within its hard expiry.
CREATE TABLE verdicts (
    id          uuid        PRIMARY KEY,
    fingerprint bytea       NOT NULL CHECK (octet_length(fingerprint) = 16),
    status      text        NOT NULL CHECK (status IN ('valid', 'invalid', 'risky', 'unresolved')),
    reason      text        NOT NULL,
    body        jsonb       NOT NULL,
    checked_at  timestamptz NOT NULL,
    hard_until  timestamptz NOT NULL
);
CREATE INDEX verdicts_fingerprint ON verdicts (fingerprint, checked_at DESC);
CREATE INDEX verdicts_hard_until ON verdicts (hard_until);

-- Something known, sealed with the secret that addresses are sealed with: a program that can't open it has another
-- secret, and is told so before it takes the rows for damaged.
CREATE TABLE sealed_proof (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    sealed bytea NOT NULL
);

-- +goose Down
DROP TABLE sealed_proof;
DROP TABLE verdicts;
DROP TABLE review_queue;
DROP SEQUENCE review_lease;
DROP TABLE review_watchers;
DROP TABLE reviews;
