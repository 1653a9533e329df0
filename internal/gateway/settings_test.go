package gateway

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"validator-gw/internal/settings"
	"validator-gw/internal/verimail/simulator"
)

// mount lays a settings file out as Kubernetes mounts a ConfigMap: the file is a link into "..data", which is a link to
// a folder of one version, and an update renames a new "..data" over the old one. It returns the file's path and a
// function that updates it.
func mount(t *testing.T, text string) (path string, update func(text string)) {
	t.Helper()
	root, version := t.TempDir(), 0
	update = func(text string) {
		t.Helper()
		version++
		folder := "..version_" + string(rune('a'+version))
		if err := os.Mkdir(filepath.Join(root, folder), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, folder, "settings.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(folder, filepath.Join(root, "..data_new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(root, "..data_new"), filepath.Join(root, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	update(text)
	path = filepath.Join(root, "settings.yaml")
	if err := os.Symlink(filepath.Join("..data", "settings.yaml"), path); err != nil {
		t.Fatal(err)
	}
	return path, update
}

type shownSettings struct {
	Reloads struct {
		Applied, Refused int64
		Stale            bool
	}
	Settings []struct {
		Path, Value, Default, Origin string
		Live                         bool
	}
}

// row returns one setting of GET /admin/settings.
func (s shownSettings) row(path string) (value, standard, origin string) {
	for _, r := range s.Settings {
		if r.Path == path {
			return r.Value, r.Default, r.Origin
		}
	}
	return "", "", ""
}

func (b *bench) settings() (s shownSettings) {
	b.t.Helper()
	res, err := http.Get(b.url + "/admin/settings")
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&s); err != nil || res.StatusCode != http.StatusOK {
		b.t.Fatalf("GET /admin/settings: %d, %v", res.StatusCode, err)
	}
	return s
}

// settingsWhen asks until the answer is as wanted.
func (b *bench) settingsWhen(what string, ok func(shownSettings) bool) (s shownSettings) {
	b.t.Helper()
	b.eventually(what, func() bool { // the file is looked at every two seconds
		s = b.settings()
		return ok(s)
	})
	return s
}

// TestLiveSettings: a changed file is in force with the next request and is shown, a faulty one changes nothing and is
// shown too; swapped as a ConfigMap is.
func TestLiveSettings(t *testing.T) {
	t.Parallel()
	b := newBench(t, stores[0].set, simulator.Config{}, nil)
	b.halt()
	const plain = "flows:\n  signup:\n    on_unverified: accept_pending\nupstream:\n  rate: 1000\n"
	path, update := mount(t, plain)
	set, err := settings.Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.live = settings.NewLive(set, path, nil, nil)
	b.live.Log = slog.New(slog.NewJSONHandler(b.log, nil))
	b.start()

	if value, standard, origin := b.settings().row("upstream.rate"); value != "1000/s" || standard != "20/s" || origin != "settings.yaml:5" {
		t.Errorf("upstream.rate is shown as %q, default %q, from %q", value, standard, origin)
	}
	if err := b.sim.SetMode(simulator.Mode{Fault: simulator.Hang}); err != nil {
		t.Fatal(err)
	}
	posts := 0
	decision := func() (got string) {
		t.Helper()
		b.eventually("an answer", func() bool { // a slow machine may refuse one, with which nothing is decided
			posts++
			a := b.post(fmt.Sprintf("person%d@example.com", posts))
			got = a.Decision
			return a.code != http.StatusServiceUnavailable
		})
		return got
	}
	if got := decision(); got != "accept_pending" {
		t.Errorf("decision %q before the change, want accept_pending", got)
	}
	update(strings.Replace(plain, "accept_pending", "hold", 1))
	b.settingsWhen("hold", func(s shownSettings) bool {
		value, _, _ := s.row("flows.signup.on_unverified")
		return value == "hold" && s.Reloads.Applied == 1
	})
	if got := decision(); got != "hold" {
		t.Errorf("decision %q after the change, want hold", got)
	}

	update("flows:\n  signup:\n    budget: 9s\nupstream:\n  rate: 7\n")
	s := b.settingsWhen("refused", func(s shownSettings) bool { return s.Reloads.Refused == 1 })
	if value, _, _ := s.row("upstream.rate"); value != "1000/s" || !s.Reloads.Stale {
		t.Errorf("after a faulty file upstream.rate is %q, stale %v; want the old one, and stale", value, s.Reloads.Stale)
	}
	if log := b.log.String(); !strings.Contains(log, "settings refused") || !strings.Contains(log, `"setting":"flows.signup.on_unverified"`) {
		t.Error("the log has no line on the change, or none on the refusal")
	}
}
