package gateway

import (
	"net"
	"sync"
)

// silence is a listener to which nobody comes, for a gateway that works and does not serve.
type silence struct {
	closed chan struct{}
	once   sync.Once
}

func newSilence() *silence { return &silence{closed: make(chan struct{})} }

// Accept waits for Close.
func (s *silence) Accept() (net.Conn, error) {
	<-s.closed
	return nil, net.ErrClosed
}

// Close ends Accept.
func (s *silence) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// Addr is no address.
func (s *silence) Addr() net.Addr { return &net.TCPAddr{} }
