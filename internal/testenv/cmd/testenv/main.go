// Command testenv runs a command with a Postgres and a Redis for tests, and removes them afterwards:
//
//	testenv run -- go test ./...
//
// See package testenv for where the servers come from.
package main

import (
	"os"

	"validator-gw/internal/testenv"
)

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "run" {
		args = args[1:]
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	os.Exit(testenv.Launch(args))
}
