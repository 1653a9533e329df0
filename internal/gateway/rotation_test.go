package gateway

import (
	"net/http"
	"testing"

	"validator-gw/internal/secret"
	"validator-gw/internal/settings"
	"validator-gw/internal/verimail/simulator"
)

// TestSecretRotation: under a new secret, with the former one given as previous, what was paid is not paid again, and a
// review from before stays the one review of its address: the same id, settled once.
func TestSecretRotation(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store func(*testing.T, *Config)) {
		b := newBench(t, store, simulator.Config{}, func(s *settings.Settings) { s.Cache.Marker = settings.Marker{Min: 1, Max: 1} })
		paid := b.post("paid@example.com")
		if err := b.sim.SetMode(simulator.Mode{Fault: simulator.Hang}); err != nil {
			t.Fatal(err)
		}
		open := b.pending("open@example.com")
		if paid.code != http.StatusOK || open.code != http.StatusAccepted {
			t.Fatalf("before the rotation: %d and %d, want 200 and 202", paid.code, open.code)
		}
		b.halt()

		fresh, err := secret.Decode(secret.Generate())
		if err != nil {
			t.Fatal(err)
		}
		b.cfg.Secret, b.cfg.SecretPrevious = fresh, b.cfg.Secret
		b.start()

		if a := b.post("paid@example.com"); a.ID != paid.ID || a.Source.Kind != "cache" {
			t.Errorf("paid before the rotation: id %s from %s, want %s from cache", a.ID, a.Source.Kind, paid.ID)
		}
		if n := b.sim.Stats().ByAddress["paid@example.com"]; n != 1 {
			t.Errorf("billed %d times, want once", n)
		}
		if a := b.pending("open@example.com"); a.code != http.StatusAccepted || a.ID != open.ID {
			t.Errorf("open since before the rotation: %d with id %s, want 202 with %s", a.code, a.ID, open.ID)
		}
		if err := b.sim.SetMode(simulator.Mode{Fault: simulator.Healthy}); err != nil {
			t.Fatal(err)
		}
		b.eventually("the review from before the rotation is settled", func() bool { return b.status(open.ID).Status == "valid" })
		if a := b.post("open@example.com"); a.code != http.StatusOK || a.Status != "valid" {
			t.Errorf("after the review: %d %s, want 200 valid", a.code, a.Status)
		}

		// Once more: what was asked for under the second secret is found under the third.
		b.halt()
		if fresh, err = secret.Decode(secret.Generate()); err != nil {
			t.Fatal(err)
		}
		b.cfg.Secret, b.cfg.SecretPrevious = fresh, b.cfg.Secret
		b.start()
		if a := b.post("paid@example.com"); a.ID != paid.ID || a.Source.Kind != "cache" {
			t.Errorf("after two rotations: id %s from %s, want %s from cache", a.ID, a.Source.Kind, paid.ID)
		}
	})
}
