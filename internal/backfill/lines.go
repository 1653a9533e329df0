package backfill

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash"
	"io"
)

// maxLine bounds a line of the input, in bytes. The longest address has 254; the rest is for the other columns.
const maxLine = 64 << 10

// line is one line of the input, without its end.
type line struct {
	text string
	long bool // it was longer than maxLine, and text is its beginning
}

// lines reads lines, each of which may be looked at before it is taken. A digest covers what was taken.
type lines struct {
	in     *bufio.Reader
	digest hash.Hash
	ahead  []line
	taken  int64 // lines
	err    error // of reading, io.EOF at the end
}

func newLines(r io.Reader, digest hash.Hash) *lines {
	return &lines{in: bufio.NewReaderSize(r, maxLine), digest: digest}
}

// peek returns the i-th line that is not taken yet, from 0. io.EOF: there is none.
func (l *lines) peek(i int) (line, error) {
	for len(l.ahead) <= i {
		if l.err != nil {
			return line{}, l.err
		}
		next, err := l.read()
		if err != nil {
			l.err = err
			if !errors.Is(err, io.EOF) || next.text == "" {
				continue
			}
		}
		l.ahead = append(l.ahead, next)
	}
	return l.ahead[i], nil
}

// take takes the first n lines that were peeked at.
func (l *lines) take(n int) {
	for _, one := range l.ahead[:n] {
		// The length keeps one line from being taken for two.
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(one.text)))
		_, _ = l.digest.Write(length[:])
		_, _ = io.WriteString(l.digest, one.text)
	}
	l.taken += int64(n)
	l.ahead = append(l.ahead[:0], l.ahead[n:]...)
}

// read reads a line up to its end. Of one that is too long the rest is passed over.
func (l *lines) read() (line, error) {
	part, err := l.in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line{text: string(trimEnd(part))}, err
	}
	one := line{text: string(part), long: true}
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = l.in.ReadSlice('\n')
	}
	return one, err
}

func trimEnd(b []byte) []byte {
	if n := len(b); n > 0 && b[n-1] == '\n' {
		b = b[:n-1]
	}
	if n := len(b); n > 0 && b[n-1] == '\r' {
		b = b[:n-1]
	}
	return b
}
