package normalize

import (
	"encoding/base64"
	"strings"
)

// DedupeKey returns a key that is the same for the addresses that a provider is known to deliver to one mailbox,
// such as anna.lee+shop@gmail.com and annalee@googlemail.com: 22 characters of unpadded base64url, a keyed hash,
// and never equal to a fingerprint but by chance (2^-128). It is for counting people who signed up twice. It is no
// address and stands for none: never send to what it was made of, and never answer one address with another's
// verdict by it.
//
// The rules go by the name of the domain and never by its MX: behind a company's own domain, the same provider
// takes dots and tags for what they are.
func (f *Fingerprinter) DedupeKey(a Address) string {
	local, domain := canonical(a)
	sum := f.key.sum(dedupeVersion, local, domain)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// canonical returns the parts of the form that all names of a mailbox have in common. The local part is never
// empty, unless a is no address.
func canonical(a Address) (local, domain string) {
	local, domain = a.local, a.domain
	switch familyOf(domain) {
	case gmail:
		// Tags and dots: Google's help on dots and on aliases. Both domains are one: Google's help on googlemail.com.
		return strings.ReplaceAll(cutTag(local), ".", ""), "gmail.com"
	case microsoft, apple, proton:
		// Tags only. Their domains are apart: another person may have the name at the other domain, or it takes the
		// age of the account to know.
		return cutTag(local), domain
	case fastmail:
		return cutTag(local), domain
	case yandex:
		// One mailbox has all of the domains.
		return cutTag(local), "yandex.ru"
	case yahoo:
		// A disposable address is base-keyword, and the plus sign is of no meaning. A base may have hyphens of its own.
		if hyphen := strings.LastIndexByte(local, '-'); hyphen > 0 {
			return local[:hyphen], domain
		}
		return local, domain
	}
	// tag@user.fastmail.com is user@fastmail.com (Fastmail's help on subdomain addressing).
	if user, rest, ok := strings.Cut(domain, "."); ok && familyOf(rest) == fastmail {
		return user, rest
	}
	// Only the receiving host may read a local part (RFC 5321 2.3.11), and of this one nothing is known.
	return local, domain
}

func familyOf(domain string) family { return domains[domain].family }

// cutTag cuts a local part at its first plus sign, unless nothing would be left.
func cutTag(local string) string {
	if tag := strings.IndexByte(local, '+'); tag > 0 {
		return local[:tag]
	}
	return local
}
