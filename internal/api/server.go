package api

import (
	"log/slog"
	"net/http"
	"time"
)

// The limits of a connection. A client that is slower than these is cut off, so that slow ones can't pile up.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	idleTimeout       = 60 * time.Second
	maxHeaderBytes    = 16 << 10
	// writeTimeout counts from the end of the header: the longest wait, and as long as the whole request may take.
	// What streams for longer moves its own deadline.
	writeTimeout = MaxWait + readTimeout
)

// Server returns a server for h with the limits of the edge, ready for Serve. What net/http itself has to say goes to
// log as warnings; nil discards it.
func Server(h http.Handler, log *slog.Logger) *http.Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}
