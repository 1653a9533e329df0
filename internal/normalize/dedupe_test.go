package normalize

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestDedupeKey(t *testing.T) {
	t.Parallel()
	f := NewFingerprinter(countingKey(0))
	for _, tc := range []struct {
		provider   string
		same, diff string // those of same have one key, those of diff one each and not that one
	}{
		{"Gmail: tags, dots and both domains",
			"annalee@gmail.com anna.lee@gmail.com a.n.n.a.lee+shop@gmail.com annalee@googlemail.com anna.lee+a+b@googlemail.com",
			"annalea@gmail.com annalee@gmail.co annalee@mail.gmail.com +annalee@gmail.com anna-lee@gmail.com"},
		{"Gmail: a tag alone is the name", "+x@gmail.com +x@googlemail.com", "x@gmail.com +@gmail.com +y@gmail.com"},
		{"Gmail: a dot before the tag", "anna@gmail.com anna.+x@gmail.com", "anna+@outlook.com"},
		{"a company at Google's MX: all counts", "anna.lee@example.com", "annalee@example.com anna.lee+shop@example.com"},
		{"Outlook: tags", "anna.lee@outlook.com anna.lee+shop@outlook.com",
			"annalee@outlook.com anna.lee@hotmail.com anna.lee@live.com anna.lee@msn.com anna.lee@outlook.fr anna.lee-shop@outlook.com"},
		{"Hotmail in a country: tags", "anna@hotmail.co.uk anna+x@hotmail.co.uk", "anna@hotmail.com an.na@hotmail.co.uk"},
		{"Live in a country: tags", "anna@live.nl anna+x@live.nl", "anna@live.com"},
		{"MSN: tags", "anna@msn.com anna+x@msn.com", "anna@outlook.com"},
		{"what is called live and is not Microsoft's", "anna@live.xyz", "anna+x@live.xyz"},
		{"Yahoo: a keyword after the last hyphen", "base@yahoo.com base-shop@yahoo.com base-news@yahoo.com",
			"base+shop@yahoo.com ba.se@yahoo.com base@yahoo.fr base@ymail.com -base@yahoo.com"},
		{"Yahoo: not at every hyphen", "anna-lee-shop@yahoo.co.uk anna-lee-news@yahoo.co.uk", "anna@yahoo.co.uk lee@yahoo.co.uk"},
		{"Ymail and Rocketmail as Yahoo", "base@ymail.com base-x@ymail.com", "base@rocketmail.com base-x@yahoo.com"},
		{"Yahoo Japan is another company", "base@yahoo.co.jp", "base-shop@yahoo.co.jp"},
		{"iCloud: tags", "anna@icloud.com anna+x@icloud.com", "anna@me.com anna@mac.com an.na@icloud.com"},
		{"Fastmail: tags and sub-domains", "anna@fastmail.com anna+x@fastmail.com shop@anna.fastmail.com a+b@anna.fastmail.com",
			"shop@anna.fastmail.fm an.na@fastmail.com x@b.anna.fastmail.com"},
		{"Proton: tags", "anna@proton.me anna+x@proton.me", "anna@protonmail.com anna@pm.me an.na@proton.me"},
		{"Yandex: tags and all domains", "anna@yandex.ru anna+x@yandex.com anna@ya.ru anna@yandex.kz", "an.na@yandex.ru an-na@yandex.ru"},
		{"others: all counts", "anna.lee+x@web.de", "anna.lee@web.de annalee@web.de anna.lee+x@gmx.de"},
	} {
		seen := map[string]string{}
		for i, raw := range strings.Fields(tc.same) {
			key := f.DedupeKey(mustParse(t, raw))
			if i > 0 && seen[key] == "" {
				t.Errorf("%s: %s has a key of its own", tc.provider, raw)
			}
			seen[key] = raw
		}
		for _, raw := range strings.Fields(tc.diff) {
			key := f.DedupeKey(mustParse(t, raw))
			if other := seen[key]; other != "" {
				t.Errorf("%s: %s has the key of %s", tc.provider, raw, other)
			}
			seen[key] = raw
		}
	}
}

// TestDedupeKeyKnownAnswer was computed apart from this code, under the key 00 01 .. 1f:
//
//	printf '\101annalee@gmail.com' | openssl dgst -sha256 -mac HMAC -macopt hexkey:000102...1f
//
// and cut to 16 octets.
func TestDedupeKeyKnownAnswer(t *testing.T) {
	t.Parallel()
	f := NewFingerprinter(countingKey(0))
	if got, want := f.DedupeKey(mustParse(t, "Anna.Lee+shop@googlemail.com")), "RCxN4zELqyS_7gpj_gmoLQ"; got != want {
		t.Errorf("dedupe key = %s, want %s", got, want)
	}
}

func TestDedupeKeyLaws(t *testing.T) {
	t.Parallel()
	f, other := NewFingerprinter(countingKey(0)), NewFingerprinter(countingKey(1))
	shape := regexp.MustCompile(`^[A-Za-z0-9_-]{22}$`)
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.StringMatching(`[a+-]([.]?[ab+-]){0,4}`).Draw(t, "local") + "@" +
			rapid.SampledFrom([]string{"gmail.com", "googlemail.com", "yahoo.com", "outlook.com", "a.fastmail.com", "ya.ru", "example.com"}).Draw(t, "domain")
		a, err := Parse(raw)
		if err != nil {
			t.Skip("no address")
		}
		local, domain := canonical(a)
		// What it is made of has the form of an address, so that it is never empty or two parts in one.
		if _, err := Parse(local + "@" + domain); err != nil && !strings.HasSuffix(local, ".") || local == "" {
			t.Errorf("%q: the form for the key is %q at %q", raw, local, domain)
		}
		key := f.DedupeKey(a)
		if !shape.MatchString(key) || key == f.Of(a).String() || key == other.DedupeKey(a) || key != f.DedupeKey(a) {
			t.Errorf("%q: key %q", raw, key)
		}
	})
}
