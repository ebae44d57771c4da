package daemon

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

	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/metrics"
	"sluice.dev/sluice/control/status"
	"sluice.dev/sluice/control/web"
)

// servers are the operator's interfaces. Neither stops forwarding when it fails.
type servers struct {
	listener net.Listener // of the status socket
	status   *status.Server
	metrics  *metrics.Server
	group    sync.WaitGroup
}

// startServers opens the sockets, which no other daemon may have, and the addresses for metrics and
// health, which may be in use.
func (d *Daemon) startServers(ctx context.Context) error {
	free := make(chan struct{})
	close(free)
	return d.startServersWhen(ctx, free)
}

// startServersWhen is startServers, but opens addresses only when free is closed.
func (d *Daemon) startServersWhen(ctx context.Context, free <-chan struct{}) error {
	c := d.config
	secret, tokens, err := secure(&c.Metrics, d.log)
	if err != nil {
		return err
	}
	s := &d.servers
	if s.listener == nil { // no process before has given its own
		if s.listener, err = status.Listen(c.StatusSocket()); err != nil {
			return fmt.Errorf("stateDir: %w", err)
		}
	}
	s.status = status.NewServer(d, d.log)
	s.group.Go(func() {
		if err := s.status.Serve(s.listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			d.log.Error("status socket", "error", err)
		}
	})
	if err := d.servePulse(ctx); err != nil {
		return err
	}
	if c.Metrics.Address != "" {
		s.metrics = metrics.NewServer(metrics.Config{
			Address: c.Metrics.Address, Source: d, Log: d.log, TLS: secret, Tokens: tokens,
			NotReady: d.notReady,
			Registry: metrics.NewRegistry(d, metrics.Extras{
				Backends:  func() bool { return d.configuration().Metrics.Backends },
				KubeProxy: d.health.kubeProxy, Affinity: d.affinity, Start: d.startFlows, SelfCheck: d.selfChecks,
				Checks: d.checkCounts,
			}),
		})
	}
	s.group.Go(func() {
		select {
		case <-free:
		case <-ctx.Done():
			return
		}
		if s.metrics != nil {
			s.group.Go(func() { s.metrics.Run(ctx) })
		}
		s.group.Go(func() { d.health.proxy.Run(ctx) })
		s.group.Go(func() { d.health.ports.Run(ctx) })
	})
	return nil
}

// secure reads the files that metrics are guarded by.
func secure(m *config.Metrics, log *slog.Logger) (secret *tls.Config, tokens *web.Tokens, err error) {
	if m.TLS.CertFile != "" {
		if secret, err = web.TLS(m.TLS.CertFile, m.TLS.KeyFile, log); err != nil {
			return nil, nil, fmt.Errorf("metrics.tls: %w", err)
		}
	}
	if m.TokenFile != "" {
		if tokens, err = web.ReadTokens(m.TokenFile, log); err != nil {
			return nil, nil, fmt.Errorf("metrics.tokenFile: %w", err)
		}
	}
	return secret, tokens, nil
}

// wait ends the servers. The context they run under must be done.
func (s *servers) wait() {
	if s.status != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = s.status.Shutdown(ctx) // responses still streaming are cut
	}
	s.group.Wait()
}
