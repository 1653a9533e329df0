package normalize

import (
	"errors"
	"testing"
)

func TestRestore(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"ana@example.com", "josé.núñez@xn--bcher-kva.example", "a+b@c.example"} {
		a, err := Restore(text)
		if err != nil {
			t.Errorf("Restore(%q) = %v, want no error", text, err)
			continue
		}
		if a.Text() != text {
			t.Errorf("Restore(%q).Text() = %q, want the same text", text, a.Text())
		}
	}
	for _, text := range []string{"", "@", "ana", "ana@", "@example.com", "a@b@example.com", "a@example.com@", "\xff@example.com"} {
		a, err := Restore(text)
		if !errors.Is(err, ErrNotStored) {
			t.Errorf("Restore(%q) = %v, want ErrNotStored", text, err)
		}
		if !a.IsZero() {
			t.Errorf("Restore(%q) gave an address beside its error", text)
		}
	}
}
