// Package metricsserver answers /metrics, /healthz and /readyz, for processes without another HTTP
// server.
package metricsserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/logs"
)

// Start answers on a TCP address until ctx is done, with the metrics of collectors, of the Go
// runtime, of the process and of its log. While loops have stalled by beats, /readyz and /healthz
// answer 503 and list them: /readyz by Bounds.Unready, /healthz by Bounds.Restart. /readyz also
// fails with the reasons that waiting returns.
func Start(
	ctx context.Context, address string, log *slog.Logger, beats *heartbeat.Set, waiting func() []string,
	of ...prometheus.Collector,
) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(of...)
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "sluice_log_lines_dropped_total",
		Help: "Lines of the log that were not written, because nobody read it or it could not be written."},
		func() float64 { return float64(logs.Stderr.Dropped()) }))
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, beats.Dead()) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, append(beats.Unready(), waiting()...))
	})
	s := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second}
	context.AfterFunc(ctx, func() { s.Close() })
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics and health are no longer served", "error", err)
		}
	}()
	return nil
}

func answer(w http.ResponseWriter, reasons []string) {
	if len(reasons) == 0 {
		fmt.Fprintln(w, "ok")
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	fmt.Fprintln(w, strings.Join(reasons, "\n"))
}
