package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sluice.dev/sluice/control/status"
)

// Config is what a Server needs.
type Config struct {
	Address  string // to listen on, such as :9470
	Source   Source
	Registry *prometheus.Registry
	Log      *slog.Logger
	// Retry is how often a taken port is tried again; 0 is DefaultRetry.
	Retry time.Duration
	// Stale is how old a worker's pulse may be; 0 is DefaultStale.
	Stale time.Duration
}

// The defaults of Config.
const (
	DefaultRetry = 5 * time.Second
	// DefaultStale is several times what a worker sleeps at most.
	DefaultStale = 10 * time.Second
)

// Server serves /metrics, /healthz and /readyz. A port that is taken is a state
// that Condition shows, and is tried again; it stops nothing.
type Server struct {
	config  Config
	handler http.Handler

	mu        sync.Mutex
	condition status.ConditionView
	addr      net.Addr
}

// NewServer returns a server that listens once Run is called.
func NewServer(c Config) *Server {
	if c.Retry == 0 {
		c.Retry = DefaultRetry
	}
	if c.Stale == 0 {
		c.Stale = DefaultStale
	}
	s := &Server{config: c}
	s.set("warn", "not listening yet", nil)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.Registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(c.Log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError, // one bad series must not hide the others
		MaxRequestsInFlight: 4,
		Timeout:             10 * time.Second,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.unhealthy()) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.unready()) })
	s.handler = mux
	return s
}

// Run listens and serves until ctx ends. It returns when nothing of it is left.
func (s *Server) Run(ctx context.Context) {
	for warned := false; ctx.Err() == nil; {
		l, err := net.Listen("tcp", s.config.Address)
		if err == nil {
			warned = false
			s.set("ok", "listening on "+l.Addr().String(), l.Addr())
			err = s.serve(ctx, l)
		}
		if err == nil {
			break
		}
		s.set("warn", fmt.Sprintf("no metrics: %v; free the port or set metrics.address", err), nil)
		if !warned {
			s.config.Log.Warn("metrics address cannot be used, trying again until it can; forwarding goes on",
				"address", s.config.Address, "error", err)
			warned = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(s.config.Retry):
		}
	}
	s.set("warn", "stopped", nil)
}

// serve answers on one listener; it returns nil once ctx ends.
func (s *Server) serve(ctx context.Context, l net.Listener) error {
	h := http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    1 << 16,
		ErrorLog:          slog.NewLogLogger(s.config.Log.Handler(), slog.LevelDebug),
	}
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
	s.condition.Name, s.condition.Level, s.condition.Detail = "metrics-listener", level, detail
	s.addr = addr
}

// Condition says whether the server listens.
func (s *Server) Condition() status.ConditionView {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.condition
}

// Addr is where the server listens now, or nil.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// unhealthy lists why the process should be restarted: workers that stand still.
func (s *Server) unhealthy() []string {
	workers := s.config.Source.Stats().Workers
	if len(workers) == 0 {
		return []string{"no worker runs yet"}
	}
	var reasons []string
	for i := range workers {
		switch w := &workers[i]; {
		case w.PulseNanos < 0:
			reasons = append(reasons, fmt.Sprintf("worker %d has not started its loop", w.Worker))
		case time.Duration(w.PulseNanos) > s.config.Stale:
			reasons = append(reasons, fmt.Sprintf("worker %d stands still for %s", w.Worker, time.Duration(w.PulseNanos).Round(time.Millisecond)))
		}
	}
	return reasons
}

// unready lists why traffic should not be sent here.
func (s *Server) unready() []string {
	v := s.config.Source.Status()
	switch {
	case v.Ready:
		return nil
	case len(v.NotReady) == 0:
		return []string{"not ready"}
	}
	return v.NotReady
}

func answer(w http.ResponseWriter, reasons []string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	body := "ok\n"
	if len(reasons) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		body = strings.Join(reasons, "\n") + "\n"
	}
	// A prober that went away has its answer in its own log.
	_, _ = w.Write([]byte(body))
}
