package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const plain = "hunter2-hunter2"

// No common way of printing shows a secret: each verb, with and without flags, alone, by pointer, in a struct, a
// slice and a map, in JSON, XML and logs.
func TestTextIsNeverPrinted(t *testing.T) {
	t.Parallel()
	text := Text(plain)
	held := struct {
		Key  Text
		Keys []Text
		By   map[string]Text
		Any  any
		Ptr  *Text
	}{text, []Text{text}, map[string]Text{"key": text}, text, &text}
	shows := func(s string) bool {
		hex := fmt.Sprintf("%x", []byte(plain))
		for _, form := range []string{plain, hex, strings.ToUpper(hex), fmt.Sprintf("%d", []byte(plain)), fmt.Sprintf("% x", []byte(plain)),
			base64.StdEncoding.EncodeToString([]byte(plain)), plain[:7]} {
			if strings.Contains(s, form) {
				return true
			}
		}
		return false
	}
	// Every verb but %w and %p, of which vet takes care: they never ask their operand how to print itself.
	for verb := '!'; verb <= '~'; verb++ {
		for _, flags := range []string{"", "+", "#", "-", " ", "0", "20", ".3", "+#"} {
			format := "%" + flags + string(verb)
			if verb == '%' || verb == 'w' || verb == 'p' || verb == '*' || verb == '[' || verb == '.' || verb >= '0' && verb <= '9' || strings.ContainsRune("+-#", verb) {
				continue
			}
			for _, v := range []any{text, &text, held, &held, held.Keys, held.By, fmt.Errorf("wrapped: %v", text)} {
				if got := fmt.Sprintf(format, v); shows(got) {
					t.Errorf("Sprintf(%q, %T) = %q", format, v, got)
				}
			}
		}
	}
	var out bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		log := slog.New(h)
		log.Info("m", "key", text, "held", held, "ptr", &text)
		log.With("key", text).WithGroup("g").Info("m", slog.Any("key", text))
	}
	if shows(out.String()) {
		t.Errorf("logged: %s", out.String())
	}
	b, err := json.Marshal(held)
	if err != nil || shows(string(b)) || !strings.Contains(string(b), redacted) {
		t.Errorf("JSON: %s, %v", b, err)
	}
	if b, err := xml.Marshal(keyed{text}); err != nil || shows(string(b)) {
		t.Errorf("XML: %s, %v", b, err)
	}
	if got := fmt.Sprint(text, text.String()); got != redacted+redacted {
		t.Errorf("printed %q", got)
	}
	if text.Reveal() != plain {
		t.Error("Reveal does not reveal")
	}
}

type keyed struct{ Key Text }

func bytesOf(n int, b byte) []byte { return bytes.Repeat([]byte{b}, n) }

func TestDecode(t *testing.T) {
	t.Parallel()
	raw := append(bytesOf(31, 0xfb), 0xff) // all of both alphabets' special letters
	long := append(bytesOf(40, 0xfe), 1)
	for _, want := range [][]byte{raw, long} {
		std, url := base64.StdEncoding.EncodeToString(want), base64.URLEncoding.EncodeToString(want)
		for _, text := range []string{std, url, strings.TrimRight(std, "="), strings.TrimRight(url, "="), " " + std + "\n", "\t" + url + "\r\n"} {
			if got, err := Decode(Text(text)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("Decode(%q) = %x, %v", text, got, err)
			}
		}
	}
	for text, want := range map[string]error{
		"": ErrTooShort, "=": ErrTooShort, base64.StdEncoding.EncodeToString(bytesOf(31, 7)): ErrTooShort,
		"not base64 at all, hunter2": nil, strings.Repeat("A", 43) + "!": nil, strings.Repeat("A", 41): nil, strings.Repeat("é", 40): nil,
		strings.Repeat("A", 20) + "=" + strings.Repeat("A", 23): nil,
	} {
		got, err := Decode(Text(text))
		if err == nil || want != nil && !errors.Is(err, want) || got != nil {
			t.Errorf("Decode(%q) = %x, %v; want an error (%v)", text, got, err, want)
		}
		if err != nil && len(text) > 8 && strings.Contains(err.Error(), text[len(text)-8:]) {
			t.Errorf("the error quotes the secret: %v", err)
		}
	}
	if _, err := Decode(Text(base64.StdEncoding.EncodeToString(bytesOf(MinLength, 7)))); err != nil {
		t.Errorf("%d bytes: %v", MinLength, err)
	}
}

func TestGenerate(t *testing.T) {
	t.Parallel()
	a, b := Generate(), Generate()
	if a == b {
		t.Error("the same secret twice")
	}
	if raw, err := Decode(a); err != nil || len(raw) != MinLength {
		t.Errorf("Decode(Generate()) = %d bytes, %v", len(raw), err)
	}
}

func TestDerive(t *testing.T) {
	t.Parallel()
	master := bytesOf(32, 1)
	row, err := Derive(master, "row")
	if err != nil || len(row) != 32 {
		t.Fatalf("%d bytes, %v; want 32", len(row), err)
	}
	again, _ := Derive(bytesOf(32, 1), "row")
	other, _ := Derive(master, "fingerprint")
	another, _ := Derive(bytesOf(32, 2), "row")
	if !bytes.Equal(row, again) {
		t.Error("the same secret and purpose give another key")
	}
	if bytes.Equal(row, other) || bytes.Equal(row, another) || bytes.Equal(row, master) {
		t.Error("another purpose or secret gives the same key")
	}
	if _, err := Derive(bytesOf(31, 1), "row"); !errors.Is(err, ErrTooShort) {
		t.Errorf("31 bytes: %v, want %v", err, ErrTooShort)
	}
}

func sealer(t *testing.T, keys ...byte) *Sealer {
	t.Helper()
	var all [][]byte
	for _, k := range keys {
		all = append(all, bytesOf(32, k))
	}
	s, err := NewSealer(all...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSealAndOpen(t *testing.T) {
	t.Parallel()
	s := sealer(t, 1)
	rapid.Check(t, func(t *rapid.T) {
		text, context := rapid.String().Draw(t, "text"), rapid.String().Draw(t, "context")
		sealed := s.Seal(text, context)
		if len(text) > 3 && bytes.Contains(sealed, []byte(text)) {
			t.Error("the text shows")
		}
		if got, err := s.Open(sealed, context); err != nil || got != text {
			t.Errorf("Open(Seal(%q)) = %q, %v", text, got, err)
		}
		if _, err := s.Open(sealed, context+"x"); !errors.Is(err, ErrUnreadable) {
			t.Errorf("another context: %v, want %v", err, ErrUnreadable)
		}
		// Any change of any byte, and any cut, is noticed.
		i := rapid.IntRange(0, len(sealed)-1).Draw(t, "byte")
		changed := bytes.Clone(sealed)
		changed[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "change"))
		if _, err := s.Open(changed, context); !errors.Is(err, ErrUnreadable) {
			t.Errorf("byte %d changed: %v, want %v", i, err, ErrUnreadable)
		}
		if _, err := s.Open(sealed[:i], context); !errors.Is(err, ErrUnreadable) {
			t.Errorf("cut at %d: %v, want %v", i, err, ErrUnreadable)
		}
		if bytes.Equal(sealed, s.Seal(text, context)) {
			t.Error("the same text twice gives the same bytes")
		}
	})
	for _, garbage := range [][]byte{nil, {}, {sealVersion}, {sealVersion, 2, 3}, bytesOf(100, 0), bytesOf(100, sealVersion)} {
		if _, err := s.Open(garbage, ""); !errors.Is(err, ErrUnreadable) {
			t.Errorf("Open(%x) = %v, want %v", garbage, err, ErrUnreadable)
		}
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	old, both, fresh := sealer(t, 1), sealer(t, 2, 1), sealer(t, 2)
	was, is := old.Seal("ana", "row"), both.Seal("ben", "row")
	open := func(s *Sealer, sealed []byte) string {
		text, err := s.Open(sealed, "row")
		if err != nil && !errors.Is(err, ErrUnreadable) {
			t.Errorf("error %v, want %v", err, ErrUnreadable)
		}
		return text
	}
	for _, tt := range []struct {
		name   string
		s      *Sealer
		sealed []byte
		want   string
	}{
		{"old by both", both, was, "ana"}, {"new by both", both, is, "ben"},
		{"new by new", fresh, is, "ben"}, {"old by new", fresh, was, ""}, {"new by old", old, is, ""},
	} {
		if got := open(tt.s, tt.sealed); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestNewSealerRefuses(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string][][]byte{"none": nil, "short": {bytesOf(31, 1)}, "long": {bytesOf(33, 1)}, "empty": {nil}, "second": {bytesOf(32, 1), bytesOf(16, 1)}} {
		if _, err := NewSealer(keys...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
