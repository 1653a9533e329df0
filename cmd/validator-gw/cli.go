package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/alecthomas/kong"
)

// command is one thing that the program does.
type command interface {
	// Run does it. A usageError is the operator's to mend, every other error is trouble in the work.
	Run(ctx context.Context, p *program) error
}

// commandLine is the grammar of the command line. A flag that is not given is nil: what stands in its place is decided
// in config.go, in the order flag, environment, file, default.
type commandLine struct {
	Dev         devCommand         `cmd:"" help:"Run with no set-up, against a simulated upstream, on this machine only."`
	Serve       serveCommand       `cmd:"" help:"Run the gateway."`
	Migrate     migrateCommand     `cmd:"" help:"Bring the schema of the store up to this program's, and exit."`
	Erase       eraseCommand       `cmd:"" help:"Remove all that is kept of an address, and print how much there was."`
	Backfill    backfillCommand    `cmd:"" help:"Check lists of addresses, and look at those that are under way."`
	Dead        deadCommand        `cmd:"" help:"Look at the reviews that nobody works on any more, and replay or drop them."`
	Simulate    simulateCommand    `cmd:"" help:"Run a simulated upstream by itself."`
	Config      configCommand      `cmd:"" help:"Look at the configuration."`
	Normalize   normalizeCommand   `cmd:"" help:"Show what becomes of addresses, without asking anyone."`
	Healthcheck healthcheckCommand `cmd:"" help:"Ask a running gateway how it is; exit code 1 when it is not well."`
	Version     versionCommand     `cmd:"" help:"Print the version."`

	VersionFlag kong.VersionFlag `name:"version" help:"Print the version."`
}

// commonFlags are for every command that reads the configuration. Credentials are never flags: other users of the
// machine can read those.
type commonFlags struct {
	Config    *string `placeholder:"FILE" help:"Settings file, YAML (VALIDATOR_GW_CONFIG)."`
	Data      *string `placeholder:"DIR" help:"Folder of the SQLite file and of dev's secret (VALIDATOR_GW_DATA; ./data)."`
	LogLevel  *string `placeholder:"LEVEL" help:"debug, info, warn or error (VALIDATOR_GW_LOG_LEVEL; info)."`
	LogFormat *string `placeholder:"FORMAT" help:"text or json (VALIDATOR_GW_LOG_FORMAT; text in dev, else json)."`
}

// given lists the flags that were given, by the variable that they stand above.
func (f commonFlags) given() map[string]*string {
	return map[string]*string{
		envConfig: f.Config, envData: f.Data, envLogLevel: f.LogLevel, envLogFormat: f.LogFormat,
	}
}

// listenFlags say where to listen.
type listenFlags struct {
	Listen        *string `placeholder:"ADDR" help:"Address of the API (VALIDATOR_GW_LISTEN; :8080, in dev 127.0.0.1:8080)."`
	MetricsListen *string `placeholder:"ADDR" help:"The same for /metrics (VALIDATOR_GW_METRICS_LISTEN; port 9090)."`
}

// serveFlags are what serve takes, and config check with it.
type serveFlags struct {
	commonFlags
	listenFlags
	RedisMode         *string `placeholder:"MODE" help:"single, sentinel or cluster (VALIDATOR_GW_REDIS_MODE; single)."`
	UpstreamURL       *string `name:"upstream-url" placeholder:"URL" help:"Where the upstream is (VALIDATOR_GW_UPSTREAM_URL)."`
	UpstreamProfile   *string `placeholder:"NAME" help:"Its wire contract: a shipped one, or a YAML file (VALIDATOR_GW_UPSTREAM_PROFILE; verimail_v3)."`
	Migrate           bool    `help:"Bring the schema up first (VALIDATOR_GW_MIGRATE)."`
	AllowUnsafeServer bool    `help:"Start even if the database may lose what it commits (VALIDATOR_GW_ALLOW_UNSAFE_SERVER)."`
}

func (f serveFlags) given() map[string]*string {
	g := f.commonFlags.given()
	g[envListen], g[envMetricsListen] = f.Listen, f.MetricsListen
	g[envRedisMode], g[envUpstreamURL], g[envUpstreamProfile] = f.RedisMode, f.UpstreamURL, f.UpstreamProfile
	yes := "true"
	if f.Migrate {
		g[envMigrate] = &yes
	}
	if f.AllowUnsafeServer {
		g[envAllowUnsafe] = &yes
	}
	return g
}

type configCommand struct {
	Check checkCommand `cmd:"" help:"Check settings file and environment, and print what is in force and where it is from."`
}

type versionCommand struct{}

// Run prints the version.
func (versionCommand) Run(_ context.Context, p *program) error {
	_, err := fmt.Fprintln(p.stdout, versionText())
	return err
}

// version is set by the linker for a release: -X main.version=v1.2.3.
var version = ""

// versionNumber is the release, or the commit that the program was built from.
func versionNumber() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	commit, changed := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+changes"
		}
	}
	switch {
	case commit != "":
		return commit + changed
	case info.Main.Version != "":
		return info.Main.Version
	}
	return "unknown"
}

// versionText is what people ask for in a bug report.
func versionText() string {
	return fmt.Sprintf("validator-gw %s (%s, %s/%s)", versionNumber(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
