package metrics

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/web"
)

// Config configures a Server.
type Config struct {
	Address  string // to listen on, such as :9470
	Registry *prometheus.Registry
	Log      *slog.Logger
	// NotReady returns why this gateway should get no traffic, and Progress the workers, and the
	// loops that have stalled. Any client that reaches the address may cause calls at any rate, so
	// both must be cheap.
	NotReady func() []string
	Progress func() (workers []status.WorkerView, stalled []string)
	// Retry is the interval of attempts to open a port that is in use; 0: web.DefaultRetry.
	Retry time.Duration
	// TLS is nil for plain HTTP; Tokens is nil if every client gets answers. Without a token,
	// /healthz and /readyz answer only with a status code.
	TLS    *tls.Config
	Tokens *web.Tokens
	// A worker is stalled if its last pass is older than Stale; 0: DefaultStale.
	Stale time.Duration
}

// DefaultStale is several times the longest sleep of a worker.
const DefaultStale = 10 * time.Second

// Server serves /metrics, /healthz and /readyz.
type Server struct {
	*web.Server
	config Config
}

// NewServer returns a server that listens once Run is called.
func NewServer(c Config) *Server {
	if c.Stale == 0 {
		c.Stale = DefaultStale
	}
	s := &Server{config: c}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", c.Tokens.Guard(promhttp.HandlerFor(c.Registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(c.Log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError, // one bad series must not hide the others
		MaxRequestsInFlight: 4,
		Timeout:             10 * time.Second,
	})))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, s.unhealthy()) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, c.NotReady()) })
	s.Server = web.New(web.Config{
		Name: "metrics-listener", Purpose: "metrics", Field: "metrics.address",
		Address: c.Address, Handler: mux, Log: c.Log, Retry: c.Retry, TLS: c.TLS,
	})
	return s
}

// unhealthy returns why the process should be restarted: stalled workers and loops.
func (s *Server) unhealthy() []string {
	workers, reasons := s.config.Progress()
	if len(workers) == 0 {
		return []string{"no worker runs yet"}
	}
	for i := range workers {
		switch w := &workers[i]; {
		case w.PulseNanos < 0:
			reasons = append(reasons, fmt.Sprintf("worker %d has not started its loop", w.Worker))
		case time.Duration(w.PulseNanos) > s.config.Stale:
			reasons = append(reasons, fmt.Sprintf("worker %d has made no progress for %s", w.Worker,
				time.Duration(w.PulseNanos).Round(time.Millisecond)))
		}
	}
	return reasons
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, reasons []string) {
	if t := s.config.Tokens; len(reasons) > 0 && t != nil && !t.Admits(r) {
		reasons = []string{"no; requests with a token get the reason"}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	body := "ok\n"
	if len(reasons) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		body = strings.Join(reasons, "\n") + "\n"
	}
	// A prober that closed the connection logs that itself.
	_, _ = w.Write([]byte(body))
}
