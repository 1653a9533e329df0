package testenv

import "fmt"

// Private is a server that belongs to a program and not to a test, for load runs. Close removes it; when the program is
// killed, its keeper does.
type Private struct{ keeper *keeper }

// KeepIfAsked makes a program its own servers' keeper, as Main does for a test binary: call it first in main.
func KeepIfAsked() { keepIfAsked() }

// StartPostgres starts a Postgres for this program alone; see PostgresServer.
func StartPostgres() (*Private, error) { return startPrivate(postgresService) }

// StartRedis starts a Redis for this program alone; see RedisServer.
func StartRedis() (*Private, error) { return startPrivate(redisService) }

func startPrivate(s service) (*Private, error) {
	k, err := startKeeper(s)
	if err != nil {
		return nil, fmt.Errorf("testenv: %w", err)
	}
	return &Private{keeper: k}, nil
}

// URL is where the server answers. It stays the same over Kill and Start.
func (p *Private) URL() string { return p.keeper.url }

// Pause freezes the server: connections stay open and new ones are taken by the kernel, but nothing answers.
func (p *Private) Pause() error { return p.keeper.do("pause") }

// Resume ends Pause.
func (p *Private) Resume() error { return p.keeper.do("resume") }

// Kill ends all of the server's processes with SIGKILL, frozen or not.
func (p *Private) Kill() error { return p.keeper.do("kill") }

// Start starts the server after Kill, on the data as it was left, and waits until it answers.
func (p *Private) Start() error { return p.keeper.do("start") }

// Close ends the server and removes all of it.
func (p *Private) Close() error { return p.keeper.stop() }
