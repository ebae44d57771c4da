// Package web serves HTTP on an address that another process may be using. Then Condition reports
// that, and the server tries again; nothing else stops.
package web

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"sluice.dev/sluice/internal/wake"
	"sluice.dev/sluice/serve/status"
)

// Config configures a Server.
type Config struct {
	// Name is the name of the condition, Purpose describes the missing service while the server
	// does not listen, Field is the configuration field with the address.
	Name, Purpose, Field string
	Address              string // to listen on, such as :9470
	Handler              http.Handler
	Log                  *slog.Logger
	// Retry is the interval of attempts to open a port that is in use; 0: DefaultRetry.
	Retry time.Duration
	// Once: a connection ends with its first answer.
	Once bool
	// TLS encrypts connections; nil: plain HTTP.
	TLS *tls.Config
}

// maxConnections bounds the connections of one Server. Scrapers and probers are few.
const maxConnections = 256

// DefaultRetry is long for a port and short for an operator.
const DefaultRetry = 5 * time.Second

// Server serves one handler on one address.
type Server struct {
	config Config
	limit  *Limit

	mu        sync.Mutex // guards the fields below
	condition status.ConditionView
	addr      net.Addr
}

// New returns a server that listens once Run is called.
func New(c Config) *Server {
	if c.Retry == 0 {
		c.Retry = DefaultRetry
	}
	s := &Server{config: c, limit: NewLimit(maxConnections)}
	s.set("warn", "not listening yet", nil)
	return s
}

// Run listens and serves until ctx ends. It returns when all its goroutines have ended.
func (s *Server) Run(ctx context.Context) {
	c := &s.config
	for warned := false; ctx.Err() == nil; {
		l, err := net.Listen("tcp", c.Address)
		if err == nil {
			warned = false
			s.set("ok", "listening on "+l.Addr().String(), l.Addr())
			if c.TLS != nil {
				l = tls.NewListener(l, c.TLS)
			}
			err = Serve(ctx, l, ServeConfig{Handler: c.Handler, Log: c.Log, Limit: s.limit, Once: c.Once})
		}
		if err == nil {
			break
		}
		s.set("warn", fmt.Sprintf("no %s: %v; free the port or set %s", c.Purpose, err, c.Field), nil)
		if !warned {
			c.Log.Warn("address cannot be used, trying again; forwarding continues",
				"field", c.Field, "address", c.Address, "error", err)
			warned = true
		}
		wake.After(ctx, c.Retry)
	}
	s.set("warn", "stopped", nil)
}

// ServeConfig configures Serve.
type ServeConfig struct {
	Handler http.Handler
	Log     *slog.Logger
	// Limit bounds the connections of all servers that share it.
	Limit *Limit
	// Once: a connection ends with its first answer.
	Once bool
}

// Serve answers on one listener until ctx ends, closes it, and returns nil.
func Serve(ctx context.Context, l net.Listener, c ServeConfig) error {
	h := http.Server{
		Handler:           c.Handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    1 << 14,
		ErrorLog:          slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
		ConnState:         c.Limit.Note,
	}
	h.SetKeepAlivesEnabled(!c.Once)
	stop := context.AfterFunc(ctx, func() { h.Close() })
	defer stop()
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *Server) set(level, detail string, addr net.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.condition.Level != level {
		s.condition.Since = time.Now()
	}
	s.condition.Name, s.condition.Level, s.condition.Detail = s.config.Name, level, detail
	s.addr = addr
}

// Condition reports whether the server listens.
func (s *Server) Condition() status.ConditionView {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.condition
}

// Addr returns the address on which the server listens, or nil.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}
