// Package migrations holds the numbered SQL of both stores' schemas, one folder a dialect, in goose's format. It
// holds no code: package fallback runs them. A migration must work with the program before it and the one after
// it, since replicas are replaced one by one.
package migrations

import "embed"

// Postgres holds the migrations of the Postgres store, in its folder "postgres".
//
//go:embed postgres/*.sql
var Postgres embed.FS

// SQLite holds the migrations of the SQLite store, in its folder "sqlite".
//
//go:embed sqlite/*.sql
var SQLite embed.FS
