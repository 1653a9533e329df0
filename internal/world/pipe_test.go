package world

import (
	"context"
	"net"
	"sync"
	"syscall"
)

// pipes is a net.Listener whose connections are net.Pipes: a network that a bubble's clock can see.
type pipes struct {
	name   string
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func listen(name string) *pipes {
	return &pipes{name: name, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// dial connects, and is refused once the listener is closed.
func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.closed:
		return nil, &net.OpError{Op: "dial", Net: "pipe", Addr: p.Addr(), Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return address(p.name) }

type address string

func (address) Network() string  { return "pipe" }
func (a address) String() string { return string(a) }
