package testenv

import "testing"

// Server is a private server of one test, which may freeze and kill it. It is removed when the test ends. Its
// methods fail the test when the server does not do as told, so call them from the test's own goroutine.
type Server struct {
	t      testing.TB
	keeper *keeper
}

// PostgresServer starts a Postgres for this test alone, in some 2 s. It syncs to disk as in production. The role
// of its URL is a superuser.
func PostgresServer(t testing.TB) *Server {
	t.Helper()
	return newServer(t, postgresService)
}

// RedisServer starts a Redis for this test alone. It keeps nothing on disk: after Kill and Start it is empty.
func RedisServer(t testing.TB) *Server {
	t.Helper()
	return newServer(t, redisService)
}

func newServer(t testing.TB, s service) *Server {
	t.Helper()
	k, err := startKeeper(s)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	t.Logf("testenv: private %v", k)
	t.Cleanup(func() {
		if err := k.stop(); err != nil {
			t.Errorf("testenv: %v", err)
		}
	})
	return &Server{t: t, keeper: k}
}

// URL is where the server answers. It stays the same over Kill and Start.
func (s *Server) URL() string { return s.keeper.url }

// Pause freezes the server: connections stay open and new ones are taken by the kernel, but nothing answers.
func (s *Server) Pause() { s.t.Helper(); s.do("pause") }

// Resume ends Pause.
func (s *Server) Resume() { s.t.Helper(); s.do("resume") }

// Kill ends all of the server's processes with SIGKILL, frozen or not.
func (s *Server) Kill() { s.t.Helper(); s.do("kill") }

// Start starts the server after Kill, on the data as it was left, and waits until it answers.
func (s *Server) Start() { s.t.Helper(); s.do("start") }

func (s *Server) do(command string) {
	s.t.Helper()
	if err := s.keeper.do(command); err != nil {
		s.t.Fatalf("testenv: %v", err)
	}
}
