package gateway

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// dumpRedis returns every key and value of the server as text.
func dumpRedis(t *testing.T, url string) string {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	defer c.Close()
	keys, err := c.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, k := range keys {
		v, err := c.Get(t.Context(), k).Result()
		if err != nil {
			v = err.Error() // another test's, of another type or gone since
		}
		fmt.Fprintln(&all, k, v)
	}
	return all.String()
}
