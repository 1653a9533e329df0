package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"validator-gw/internal/gateway"
	"validator-gw/internal/secret"
	"validator-gw/internal/settings"
	"validator-gw/internal/verimail"
)

// The variables of what is fixed at the start. Compose files and scripts rely on these names.
const (
	envListen          = "VALIDATOR_GW_LISTEN"
	envMetricsListen   = "VALIDATOR_GW_METRICS_LISTEN"
	envData            = "VALIDATOR_GW_DATA"
	envConfig          = "VALIDATOR_GW_CONFIG"
	envDatabaseURL     = "DATABASE_URL"
	envRedisURL        = "REDIS_URL"
	envRedisMode       = "VALIDATOR_GW_REDIS_MODE"
	envUpstreamURL     = "VALIDATOR_GW_UPSTREAM_URL"
	envUpstreamKey     = "VALIDATOR_GW_UPSTREAM_KEY"
	envUpstreamProfile = "VALIDATOR_GW_UPSTREAM_PROFILE"
	envSecret          = "VALIDATOR_GW_SECRET"
	envSecretPrevious  = "VALIDATOR_GW_SECRET_PREVIOUS"
	envAPIKey          = "VALIDATOR_GW_API_KEY"
	envMigrate         = "VALIDATOR_GW_MIGRATE"
	envAllowUnsafe     = "VALIDATOR_GW_ALLOW_UNSAFE_SERVER"
	envLogLevel        = "VALIDATOR_GW_LOG_LEVEL"
	envLogFormat       = "VALIDATOR_GW_LOG_FORMAT"

	// fileSuffix makes the variable that names a file with the secret in it.
	fileSuffix = "_FILE"
)

// statics lists them in the order in which config check prints them.
var statics = []settings.Known{
	{Env: envListen, Path: "listen"},
	{Env: envMetricsListen, Path: "metrics_listen"},
	{Env: envData, Path: "data"},
	{Env: envConfig},
	{Env: envDatabaseURL, Path: "database_url", Secret: true},
	{Env: envRedisURL, Path: "redis_url", Secret: true},
	{Env: envRedisMode, Path: "redis_mode"},
	{Env: envUpstreamURL, Path: "upstream.url"},
	{Env: envUpstreamKey, Path: "upstream.key", Secret: true},
	{Env: envUpstreamKey + fileSuffix},
	{Env: envUpstreamProfile, Path: "upstream.profile"},
	{Env: envSecret, Path: "secret", Secret: true},
	{Env: envSecret + fileSuffix},
	{Env: envSecretPrevious, Path: "secret_previous", Secret: true},
	{Env: envSecretPrevious + fileSuffix},
	{Env: envAPIKey, Path: "api_key", Secret: true},
	{Env: envAPIKey + fileSuffix},
	{Env: envMigrate, Path: "migrate"},
	{Env: envAllowUnsafe, Path: "allow_unsafe_server"},
	{Env: envLogLevel, Path: "log.level"},
	{Env: envLogFormat, Path: "log.format"},
}

// mode is the command that a configuration is for.
type mode string

const (
	modeDev     mode = "dev"
	modeServe   mode = "serve"
	modeMigrate mode = "migrate"
	// modeBackfill works like serve, and listens nowhere.
	modeBackfill mode = "backfill"
)

// config is the whole configuration of one process: what is fixed here, what is live in settings.
type config struct {
	mode mode

	listen, metricsListen string
	dataDir               string
	databaseURL, redisURL secret.Text
	redisMode             string
	upstreamURL           string
	upstreamKey           secret.Text
	upstreamProfile       string
	secret                []byte // nil: not given
	secretPrevious        []byte
	apiKey                secret.Text
	migrate, allowUnsafe  bool
	logLevel              slog.Level
	logJSON               bool

	settingsPath string
	settings     *settings.Settings

	// rows are the static part as config check prints it; missing is what serve can't do without.
	rows    []row
	missing []error
	// warnings are allowed and probably not meant; those of the live settings are theirs.
	warnings []string
}

// row is one line of config check.
type row struct{ name, value, origin string }

// reader finds the text of static settings, notes where each is from, and collects faults.
type reader struct {
	flags map[string]*string // by variable
	env   map[string]string
	file  *settings.Settings // nil when it could not be read
	cfg   *config
	errs  []error
	lacks []error // what serve can't do without
}

func (r *reader) fault(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

// newReader indexes the environment. An empty variable counts as not set, as compose files write it.
func newReader(flags map[string]*string, environ []string, cfg *config) *reader {
	r := &reader{flags: flags, env: map[string]string{}, cfg: cfg}
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok && value != "" {
			r.env[name] = value
		}
	}
	return r
}

// find returns the text for a variable from flag, environment, file or default, and where it is from.
func (r *reader) find(env, otherwise string) (text, origin string) {
	var path string
	for _, k := range statics {
		if k.Env == env && !k.Secret {
			path = k.Path
		}
	}
	if flag := r.flags[env]; flag != nil {
		return *flag, "--" + strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(env, settings.EnvPrefix), "_", "-"))
	}
	if text, ok := r.env[env]; ok {
		return strings.TrimSpace(text), env
	}
	if r.file != nil && path != "" {
		if text, ok := r.file.Static(path); ok {
			return text, "settings file"
		}
	}
	return otherwise, "default"
}

// text is find, noted for config check.
func (r *reader) text(env, otherwise string) (text, origin string) {
	text, origin = r.find(env, otherwise)
	value := text
	if value == "" {
		value = "(none)"
	}
	r.note(env, value, origin)
	return text, origin
}

func (r *reader) note(env, value, origin string) {
	r.cfg.rows = append(r.cfg.rows, row{env, value, origin})
}

// choice is a text that must be one of the legal ones.
func (r *reader) choice(env, otherwise string, legal ...string) string {
	text, origin := r.text(env, otherwise)
	if !slices.Contains(legal, text) {
		r.fault("%s (%s): %q is not one of %s", env, origin, text, strings.Join(legal, ", "))
		return otherwise
	}
	return text
}

func (r *reader) yes(env string) bool {
	text, origin := r.text(env, "false")
	v, err := strconv.ParseBool(text)
	if err != nil {
		r.fault("%s (%s): %q is neither true nor false", env, origin, text)
	}
	return v
}

// address is a host and a port to listen on.
func (r *reader) address(env, otherwise string, loopbackOnly bool) string {
	text, origin := r.text(env, otherwise)
	host, port, err := net.SplitHostPort(text)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		r.fault("%s (%s): %q is not an address; write it as 127.0.0.1:8080 or :8080", env, origin, text)
		return otherwise
	}
	if loopbackOnly && !isLoopback(host) {
		r.fault("%s (%s): %q is reachable from other machines, and dev asks for no key; use 127.0.0.1:%s, or serve",
			env, origin, text, port)
	}
	return text
}

// isLoopback says whether a listener on host is reached from this machine only.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// maxSecretFile bounds a file that holds a secret, in bytes.
const maxSecretFile = 64 << 10

// secretText is the secret in a variable, or in the file that its sibling names; empty when neither is set. It is
// never shown: not in faults, not in rows.
func (r *reader) secretText(env string) secret.Text {
	direct, isDirect := r.env[env]
	path, isFile := r.env[env+fileSuffix]
	switch {
	case isDirect && isFile:
		r.fault("%s and %s are both set; keep one", env, env+fileSuffix)
		return ""
	case isDirect:
		r.note(env, "set", env)
		return secret.Text(strings.TrimSpace(direct))
	case !isFile:
		r.note(env, "not set", "default")
		return ""
	}
	text, err := readSecretFile(path)
	switch {
	case err != nil:
		r.fault("%s: %w", env+fileSuffix, err)
	case text == "":
		r.fault("%s: %s is empty", env+fileSuffix, path)
	default:
		r.note(env, "set", env+fileSuffix)
	}
	return text
}

func readSecretFile(path string) (secret.Text, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return "", err
	}
	if len(data) > maxSecretFile {
		return "", fmt.Errorf("%s is larger than 64 KiB", path)
	}
	return secret.Text(strings.TrimSpace(string(data))), nil
}

// master is a secret that keys are derived from.
func (r *reader) master(env string) []byte {
	text := r.secretText(env)
	if text == "" {
		return nil
	}
	b, err := secret.Decode(text)
	if err != nil {
		r.fault("%s: %w", env, err)
	}
	return b
}

// loadConfig reads everything: flags, then environment, then file, then defaults. The error joins every fault of every
// layer and of the live settings, and is a usageError. Nothing is opened or made but the files that are named.
func loadConfig(m mode, flags map[string]*string, environ []string) (*config, error) {
	cfg := &config{mode: m}
	r := newReader(flags, environ, cfg)
	dev := m == modeDev

	path, _ := r.find(envConfig, "")
	cfg.settingsPath = path
	var err error
	if cfg.settings, err = settings.Load(path, environ, statics...); err != nil {
		r.errs = append(r.errs, err)
	} else if err := gateway.CheckCallbacks(cfg.settings); err != nil && m != modeMigrate {
		r.errs = append(r.errs, err)
	}
	r.file = cfg.settings

	listen, metricsListen, format := ":8080", ":9090", "json"
	if dev {
		listen, metricsListen, format = "127.0.0.1:8080", "127.0.0.1:9090", "text"
	}
	cfg.listen = r.address(envListen, listen, dev)
	cfg.metricsListen = r.address(envMetricsListen, metricsListen, dev)
	cfg.dataDir, _ = r.text(envData, "data")
	r.text(envConfig, "")
	if dev {
		// A machine that people develop on has such variables for other programs.
		for _, env := range []string{envDatabaseURL, envRedisURL, envUpstreamURL, envUpstreamKey} {
			if r.env[env] != "" {
				cfg.warnings = append(cfg.warnings, "dev does not use "+env+"; serve does")
			}
		}
	} else {
		r.stores(cfg)
		r.upstream(cfg)
	}
	cfg.secret = r.master(envSecret)
	cfg.secretPrevious = r.master(envSecretPrevious)
	cfg.apiKey = r.secretText(envAPIKey)
	cfg.migrate = r.yes(envMigrate) || dev
	cfg.allowUnsafe = r.yes(envAllowUnsafe)
	level := r.choice(envLogLevel, "info", "debug", "info", "warn", "error")
	_ = cfg.logLevel.UnmarshalText([]byte(level)) // the four are slog's own names
	cfg.logJSON = r.choice(envLogFormat, format, "text", "json") == "json"

	switch m {
	case modeServe:
		cfg.missing = r.absent()
	case modeBackfill:
		r.needsSecret()
		cfg.missing = r.lacks
	}
	if err := errors.Join(r.errs...); err != nil {
		return cfg, usageError{err}
	}
	return cfg, nil
}

// stores reads where the durable rows and the shared cache are.
func (r *reader) stores(cfg *config) {
	cfg.databaseURL = r.secretText(envDatabaseURL)
	if cfg.databaseURL != "" {
		// The parser's error quotes the URL and with it the password, so only its fact is told.
		if _, err := pgxpool.ParseConfig(cfg.databaseURL.Reveal()); err != nil {
			r.fault("%s: can't be read; write it as postgres://user:password@host:5432/database", envDatabaseURL)
		}
	}
	cfg.redisURL = r.secretText(envRedisURL)
	cfg.redisMode = r.choice(envRedisMode, "single", "single", "sentinel", "cluster")
	if cfg.redisURL == "" {
		return
	}
	var err error
	example := "redis://:password@host:6379/0"
	switch cfg.redisMode {
	case "sentinel":
		_, err = redis.ParseFailoverURL(cfg.redisURL.Reveal())
		example = "redis://:password@sentinel:26379/0?master_name=mymaster"
	case "cluster":
		_, err = redis.ParseClusterURL(cfg.redisURL.Reveal())
		example = "redis://:password@host:6379?addr=host2:6379&addr=host3:6379"
	default:
		_, err = redis.ParseURL(cfg.redisURL.Reveal())
	}
	if err != nil {
		r.fault("%s: can't be read for mode %s; write it as %s", envRedisURL, cfg.redisMode, example)
	}
}

// upstream reads whom to ask.
func (r *reader) upstream(cfg *config) {
	profile := r.profile(cfg)
	text, origin := r.find(envUpstreamURL, "")
	shown := text
	if text != "" {
		u, err := url.Parse(text)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			r.fault("%s (%s): is not a base URL; write it as %s", envUpstreamURL, origin, verimail.DefaultURL)
			shown = "(can't be read)"
		case u.User != nil || u.RawQuery != "" || u.Fragment != "":
			r.fault("%s (%s): is a base URL, without user, query or fragment; the key goes into %s",
				envUpstreamURL, origin, envUpstreamKey)
			shown = "(can't be used)"
		}
	} else if profile != nil {
		shown = profile.URL() + " (the profile's own)"
		if profile.URL() == "" {
			shown = "(none)"
			r.needs(envUpstreamURL, "no upstream URL: profile "+profile.Name()+" is of a provider that everybody hosts for "+
				"themselves; set "+envUpstreamURL+" to where yours is")
		}
	}
	r.note(envUpstreamURL, shown, origin)
	cfg.upstreamURL = text
	cfg.upstreamKey = r.secretText(envUpstreamKey)
	if profile == nil || profile.NeedsKey() {
		r.needs(envUpstreamKey, "no upstream key: set "+envUpstreamKey+" (or "+envUpstreamKey+fileSuffix+
			") to the key of your account with the upstream; to try the gateway without one, run: validator-gw dev")
	}
}

// profile reads the upstream's profile: a shipped one, or a file. It is nil when that is faulty.
func (r *reader) profile(cfg *config) *verimail.Profile {
	text, origin := r.find(envUpstreamProfile, verimail.ProfileVerimailV3)
	cfg.upstreamProfile = text
	profile, err := verimail.LoadProfile(text)
	if err != nil {
		for _, fault := range settings.Faults(err) {
			r.fault("%s (%s): %s", envUpstreamProfile, origin, fault)
		}
		r.note(envUpstreamProfile, text, origin)
		return nil
	}
	r.note(envUpstreamProfile, text+" ("+profile.Version()+")", origin)
	return profile
}

// needs notes what serve can't do without when the variable is not set in any way.
func (r *reader) needs(env, text string) {
	if r.env[env] == "" && r.env[env+fileSuffix] == "" {
		r.lacks = append(r.lacks, errors.New(text))
	}
}

func (r *reader) needsSecret() {
	r.needs(envSecret, "no secret: set "+envSecret+" (or "+envSecret+fileSuffix+
		") to what this prints, and keep it, since stored rows can't be read without it: openssl rand -base64 32")
}

// absent lists what serve can't do without, each with what to do. A secret that was given and is faulty is a fault
// already.
func (r *reader) absent() []error {
	r.needsSecret()
	r.needs(envAPIKey, "no API key: set "+envAPIKey+" (or "+envAPIKey+fileSuffix+
		") to what your clients send as a bearer token; make one with: openssl rand -hex 24")
	return r.lacks
}

// gateway is the part that the gateway takes.
func (c *config) gateway() gateway.Config {
	return gateway.Config{
		Mode: string(c.mode), DatabaseURL: c.databaseURL, RedisURL: c.redisURL, RedisMode: c.redisMode,
		DataDir: c.dataDir, UpstreamURL: c.upstreamURL, UpstreamKey: c.upstreamKey, UpstreamProfile: c.upstreamProfile,
		Secret: c.secret, SecretPrevious: c.secretPrevious, APIKey: c.apiKey, Migrate: c.migrate,
		AllowUnsafe: c.allowUnsafe, Version: versionNumber(),
	}
}

// logger writes to w as the configuration says.
func (c *config) logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: c.logLevel}
	if c.logJSON {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// serveLogger is logger for a process that serves: lines that programs read are gathered, those that people read are
// written one by one. Call flush at the end.
func (c *config) serveLogger(w io.Writer) (log *slog.Logger, flush func()) {
	if !c.logJSON {
		return c.logger(w), func() {}
	}
	l := newLines(w)
	return slog.New(prompt{c.logger(l).Handler(), l}), l.Flush
}
