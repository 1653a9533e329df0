package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"validator-gw/internal/soak"
	"validator-gw/internal/verimail/simulator"
)

// measurement is what is measured and how.
type measurement struct {
	program     string
	rounds      int
	round       time.Duration
	connections int
	addresses   int
	profile     string
}

// side is one of the two that are compared.
type side struct {
	name    string
	child   *child
	want    []byte
	rates   []float64
	answers []time.Duration
	used    usage
	own     float64 // seconds of processor time that this process took meanwhile
}

func (m *measurement) run(ctx context.Context, out io.Writer) (err error) {
	folder, err := os.MkdirTemp("", "validator-gw-cached-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder) //nolint:errcheck // it is a temporary folder
	upstream, closeUpstream, err := serveUpstream(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeUpstream()) }()

	key := "client-" + rand.Text()
	env := gatewayEnv(upstream, key, filepath.Join(folder, "data"))
	requests := make([][]byte, m.addresses)
	for i := range requests {
		requests[i] = request(key, fmt.Sprintf("cached.%06d@example.com", i))
	}
	gateway, err := start(ctx, folder, "gateway", m.program, []string{"serve"}, env)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gateway.stop()) }()
	template, err := m.warm(ctx, gateway.host, requests)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	bare, err := start(ctx, folder, "bare", self, []string{bareChild}, []string{templateEnv + "=" + string(template)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bare.stop()) }()
	if err := same(ctx, bare.host, requests[0], template); err != nil {
		return err
	}

	sides := []*side{{name: "gateway", child: gateway, want: []byte(`"kind":"cache"`)}, {name: "bare", child: bare, want: []byte(`"kind":"cache"`)}}
	for round := range m.rounds + 1 {
		for i := range sides {
			s := sides[(i+round)%2] // neither is always the one that comes second
			if err := m.measure(ctx, s, requests, round > 0); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	m.print(out, sides)
	if m.profile != "" {
		return m.takeProfiles(ctx, folder, self, env, requests)
	}
	return nil
}

// gatewayEnv is a single node on SQLite. Its log has the defaults of production: JSON, a line for each request, in a file.
func gatewayEnv(upstream, key, data string) []string {
	var master [32]byte
	_, _ = rand.Read(master[:]) // never fails
	return []string{
		"VALIDATOR_GW_LISTEN=127.0.0.1:0", "VALIDATOR_GW_METRICS_LISTEN=127.0.0.1:0", "VALIDATOR_GW_MIGRATE=true",
		"VALIDATOR_GW_UPSTREAM_URL=http://" + upstream, "VALIDATOR_GW_UPSTREAM_KEY=upstream-" + rand.Text(), "VALIDATOR_GW_API_KEY=" + key,
		"VALIDATOR_GW_SECRET=" + base64.StdEncoding.EncodeToString(master[:]), "VALIDATOR_GW_DATA=" + data,
		"VALIDATOR_GW_UPSTREAM_RATE=2000/s", "VALIDATOR_GW_UPSTREAM_BURST=1000",
	}
}

// serveUpstream serves a simulated upstream that finds everything deliverable. It has nothing to do while it is measured.
func serveUpstream(ctx context.Context) (address string, stop func() error, err error) {
	sim, err := simulator.New(simulator.Config{})
	if err != nil {
		return "", nil, err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- sim.Run(serving, ln) }()
	return ln.Addr().String(), func() error {
		cancel()
		sim.Close()
		return <-ended
	}, nil
}

// warm asks for every address until it is cached, and returns a cached answer to the first.
func (m *measurement) warm(ctx context.Context, host string, requests [][]byte) ([]byte, error) {
	for _, r := range requests {
		if _, err := ask(ctx, host, r); err != nil {
			return nil, fmt.Errorf("warming up: %w", err)
		}
	}
	return ask(ctx, host, requests[0])
}

// ask makes one request on a connection of its own.
func ask(ctx context.Context, host string, r []byte) ([]byte, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second)) // a socket takes deadlines
	if _, err := c.Write(r); err != nil {
		return nil, err
	}
	return readAnswer(bufio.NewReader(c), nil)
}

// same says whether the bare handler answers what the gateway does.
func same(ctx context.Context, host string, r, want []byte) error {
	got, err := ask(ctx, host, r)
	if err != nil {
		return fmt.Errorf("bare: %w", err)
	}
	var a, b any
	if err := errors.Join(json.Unmarshal(got, &a), json.Unmarshal(want, &b)); err != nil {
		return err
	}
	x, _ := json.Marshal(a) // what was unmarshaled marshals
	y, _ := json.Marshal(b)
	if !bytes.Equal(x, y) || len(got) != len(want) {
		return fmt.Errorf("the two do not answer the same: %s and %s", got, want)
	}
	return nil
}

// measure is one round. One that does not count is for connections, caches and the collector's pace to settle.
func (m *measurement) measure(ctx context.Context, s *side, requests [][]byte, counts bool) error {
	before, err := s.child.used(ctx)
	if err != nil {
		return err
	}
	own := ownTime()
	l, err := drive(ctx, s.child.host, requests, m.connections, m.round, s.want)
	if err != nil {
		return err
	}
	own = ownTime() - own
	after, err := s.child.used(ctx)
	if err != nil || !counts {
		return err
	}
	s.rates, s.answers = append(s.rates, l.rate()), append(s.answers, l.answers...)
	s.used, s.own = s.used.plus(after.minus(before)), s.own+own
	return nil
}

// ownTime is the processor time of this process in seconds.
func ownTime() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

func (m *measurement) print(out io.Writer, sides []*side) {
	fmt.Fprintf(out, "a cached answer over HTTP: %d rounds of %v each, in turn, %d connections, %d addresses, %d processors for all\n",
		m.rounds, m.round, m.connections, m.addresses, runtime.NumCPU())
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tanswers a second\tp50 µs\tp99 µs\tp99.9 µs\tallocations\tbytes\tprocessor µs\tthe load's µs\tresident MiB")
	for _, s := range sides {
		n, d := float64(len(s.answers)), soak.NewLatencies(s.answers)
		micro := func(q float64) float64 { return float64(d.Quantile(q).Nanoseconds()) / 1000 }
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.1f\t%.0f\t%.1f\t%.1f\t%.0f\n", s.name, median(s.rates), micro(0.5), micro(0.99), micro(0.999),
			s.used.allocs/n, s.used.bytes/n, 1e6*s.used.cpu/n, 1e6*s.own/n, s.used.resident/(1<<20))
	}
	_ = t.Flush() // whoever closed the output does not want it
	ratios := make([]float64, m.rounds)
	for i := range ratios {
		ratios[i] = sides[0].rates[i] / sides[1].rates[i]
	}
	fmt.Fprintf(out, "throughput, gateway to bare, round by round: median %.3f, from %.3f to %.3f; allocations, bytes and times are for one answer\n",
		median(ratios), slices.Min(ratios), slices.Max(ratios))
}

func median(of []float64) float64 {
	s := slices.Sorted(slices.Values(of))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}
