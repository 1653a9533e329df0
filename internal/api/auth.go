package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// anonymous is the client's name where no key is asked for.
const anonymous = "anonymous"

// hashedKey is a client's key as it is compared: hashes have one length, so the time of a comparison tells nothing.
type hashedKey struct {
	name string
	sum  [sha256.Size]byte
}

func hashKey(k Key) hashedKey {
	return hashedKey{name: k.Name, sum: sha256.Sum256([]byte(k.Key.Reveal()))}
}

// client returns the name of the client whose key this is. It takes the same time for every key and for none.
func (a *API) client(key string) (name string, known bool) {
	var room [128]byte // for the copy of a usual key; a longer one takes room of its own
	sum := sha256.Sum256(append(room[:0], key...))
	found := -1
	for i := range a.keys {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], a.keys[i].sum[:]), i, found)
	}
	if found < 0 {
		return "", false
	}
	return a.keys[found].name, true
}

// authenticate sets the client of x, or refuses the request and returns false.
func (a *API) authenticate(x *exchange, r *http.Request) bool {
	if len(a.keys) == 0 {
		x.client = anonymous
		return true
	}
	key, sent := bearer(r)
	if sent {
		if name, known := a.client(key); known {
			x.client = name
			return true
		}
	}
	challenge := `Bearer realm="validator-gw"`
	p := unauthorized.plain()
	if sent { // RFC 6750 3.1: no error code where no key was sent
		challenge += `, error="invalid_token"`
		p.detail = "The key is not known here."
	}
	x.Header().Set("WWW-Authenticate", challenge)
	a.refuse(x, p)
	return false
}

// bearer returns the token of the one Authorization header, if there is one.
func bearer(r *http.Request) (token string, sent bool) {
	values := r.Header["Authorization"]
	if len(values) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	return token, token != "" && strings.EqualFold(scheme, "Bearer") // RFC 9110 11.1: schemes ignore case
}
