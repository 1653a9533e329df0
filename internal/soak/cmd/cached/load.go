package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// load is what one round came to.
type load struct {
	took    time.Duration
	answers []time.Duration // how long each took
}

func (l load) rate() float64 { return float64(len(l.answers)) / l.took.Seconds() }

// request is the bytes of one POST /validate. Host and key are the same for both servers, so that both read as much.
func request(key, address string) []byte {
	body := `{"email":"` + address + `"}`
	return fmt.Appendf(nil, "POST /validate HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: cached\r\nAccept: */*\r\n"+
		"Authorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", key, len(body), body)
}

// drive keeps some connections busy for a time: each sends its next request when it has read the answer to the one before.
// The requests are made up before, and answers are read no further than needed, so that this side costs little. Every answer
// must be a 200 that holds want.
func drive(ctx context.Context, at string, requests [][]byte, connections int, length time.Duration, want []byte) (load, error) {
	conns := make([]net.Conn, connections)
	for i := range conns {
		c, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", at)
		if err != nil {
			return load{}, err
		}
		defer c.Close()
		conns[i] = c
	}
	took := make([][]time.Duration, connections)
	faults := make([]error, connections)
	var asking sync.WaitGroup
	began := time.Now()
	end := began.Add(length)
	for i, c := range conns {
		asking.Go(func() {
			_ = c.SetDeadline(end.Add(5 * time.Second)) // a socket takes deadlines
			took[i], faults[i] = askOn(ctx, c, requests, i*len(requests)/connections, end, want)
		})
	}
	asking.Wait()
	l := load{took: time.Since(began)}
	for _, t := range took {
		l.answers = append(l.answers, t...)
	}
	return l, errors.Join(append(faults, context.Cause(ctx))...)
}

// askOn asks on one connection until end.
func askOn(ctx context.Context, c net.Conn, requests [][]byte, first int, end time.Time, want []byte) ([]time.Duration, error) {
	took := make([]time.Duration, 0, 1<<17)
	r := bufio.NewReaderSize(c, 16<<10)
	var body []byte
	for n, before := first, time.Now(); before.Before(end) && ctx.Err() == nil; n++ {
		if _, err := c.Write(requests[n%len(requests)]); err != nil {
			return took, err
		}
		var err error
		if body, err = readAnswer(r, body); err != nil {
			return took, err
		}
		if !bytes.Contains(body, want) {
			return took, fmt.Errorf("an answer lacks %s", want)
		}
		now := time.Now()
		took = append(took, now.Sub(before))
		before = now
	}
	return took, nil
}

// readAnswer reads one response with a Content-Length into buf and returns its body.
func readAnswer(r *bufio.Reader, buf []byte) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return buf, err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
		return buf, fmt.Errorf("answered %q", bytes.TrimSpace(line))
	}
	length := -1
	for {
		if line, err = r.ReadSlice('\n'); err != nil {
			return buf, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(v)); err != nil {
				return buf, err
			}
		}
	}
	if length < 0 || length > 1<<20 {
		return buf, errors.New("an answer without a usable Content-Length")
	}
	if cap(buf) < length {
		buf = make([]byte, length)
	}
	buf = buf[:length]
	_, err = io.ReadFull(r, buf)
	return buf, err
}
