package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"sluice.dev/sluice/internal/logs"
	"sluice.dev/sluice/serve/metrics"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/web"
)

// servers are the operator's interfaces. Neither stops forwarding when it fails.
type servers struct {
	listener net.Listener // of the status socket
	status   *status.Server
	guard    guard // of metrics
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

// guard is what metrics are guarded by.
type guard struct {
	read   bool
	secret *tls.Config
	tokens *web.Tokens
}

// startServersWhen is startServers, but opens addresses only when free is closed. It cannot fail
// where a process before has given its sockets, and secure was called.
func (d *Daemon) startServersWhen(ctx context.Context, free <-chan struct{}) (err error) {
	c, s := d.config, &d.servers
	if !s.guard.read {
		if err := d.secure(); err != nil {
			return err
		}
	}
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
			Address: c.Metrics.Address, Source: d, Log: d.log, TLS: s.guard.secret, Tokens: s.guard.tokens,
			NotReady: d.notReady,
			Registry: metrics.NewRegistry(d, metrics.Extras{
				Backends:  func() bool { return d.configuration().Metrics.Backends },
				KubeProxy: d.health.kubeProxy, Affinity: d.affinity, Start: d.startFlows, SelfCheck: d.selfChecks,
				Checks: d.checkCounts, Seed: d.seedInfo, LogDropped: logs.Stderr.Dropped,
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
func (d *Daemon) secure() (err error) {
	m, g := &d.config.Metrics, guard{read: true}
	if m.TLS.CertFile != "" {
		if g.secret, err = web.TLS(m.TLS.CertFile, m.TLS.KeyFile, d.log); err != nil {
			return fmt.Errorf("metrics.tls: %w", err)
		}
	}
	if m.TokenFile != "" {
		if g.tokens, err = web.ReadTokens(m.TokenFile, d.log); err != nil {
			return fmt.Errorf("metrics.tokenFile: %w", err)
		}
	}
	d.servers.guard = g
	return nil
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
