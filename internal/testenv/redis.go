package testenv

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Redis returns the URL of a Redis and a prefix ("t" and random letters, ending in a colon) that no other test
// has. The keys under it are removed when the test ends. A test must touch no others and never flush: tests of
// other packages share the server.
func Redis(t testing.TB) (url, prefix string) {
	t.Helper()
	url, err := sharedRedis.start()
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	prefix = "t" + randomName() + ":"
	t.Cleanup(func() {
		if err := removeKeys(url, prefix); err != nil {
			t.Errorf("testenv: remove keys: %v", err)
		}
	})
	return url, prefix
}

func removeKeys(url, prefix string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client, err := redisClient(url)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	for it := client.Scan(ctx, 0, prefix+"*", 1000).Iterator(); ; {
		if !it.Next(ctx) {
			return it.Err()
		}
		if err := client.Unlink(ctx, it.Val()).Err(); err != nil {
			return fmt.Errorf("unlink: %w", err)
		}
	}
}
