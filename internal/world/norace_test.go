//go:build !race

package world

// defaultHours is a whole day.
const defaultHours = 24
