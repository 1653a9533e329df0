//go:build race

package world

// defaultHours is short under the race detector, which makes SQLite some twenty times slower.
const defaultHours = 1
