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

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/serve/health"
	"sluice.dev/sluice/serve/metrics"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/web"
)

// servers own the operator's interfaces. A failure of one of them does not stop forwarding.
type servers struct {
	listener net.Listener // of the status socket
	status   *status.Server
	readers  readers
	guard    guard
	metrics  *metrics.Server
	group    sync.WaitGroup

	certificates certificates
}

// statusConnections bounds the connections of each status socket: a command has one, a browser of
// `sluice ui` a few.
const statusConnections = 64

// limited bounds the connections of a server, before it serves.
func limited(s *status.Server) *status.Server {
	s.OnConnState(web.NewLimit(statusConnections).Note)
	return s
}

// guard protects the metrics.
type guard struct {
	read   bool
	secret *tls.Config
	tokens *web.Tokens
}

// healthServers answer load balancers. The control loop notifies them.
type healthServers struct {
	proxy     *health.Proxy
	ports     *health.Ports
	kubeProxy *metrics.KubeProxy
}

// readGuard reads the files that protect the metrics, if it has not read them yet.
func (s *servers) readGuard(m *config.Metrics, log *slog.Logger) (err error) {
	if s.guard.read {
		return nil
	}
	g := guard{read: true}
	if m.TLS.CertFile != "" {
		if g.secret, err = web.TLS(m.TLS.CertFile, m.TLS.KeyFile, log); err != nil {
			return fmt.Errorf("metrics.tls: %w", err)
		}
	}
	if m.TokenFile != "" {
		if g.tokens, err = web.ReadTokens(m.TokenFile, log); err != nil {
			return fmt.Errorf("metrics.tokenFile: %w", err)
		}
	}
	s.guard = g
	return nil
}

// serveStatus answers on the status socket. It makes the socket unless the predecessor has handed
// over its own.
func (s *servers) serveStatus(path string, g status.Gateway, log *slog.Logger) (err error) {
	if s.listener == nil {
		if s.listener, err = status.Listen(path); err != nil {
			return fmt.Errorf("stateDir: %w", err)
		}
	}
	s.status = limited(status.NewServer(g, log))
	s.group.Go(func() {
		if err := s.status.Serve(s.listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			log.Error("status socket", "error", err)
		}
	})
	return nil
}

// wait waits until all servers have ended. Their context must be done.
func (s *servers) wait() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, server := range []*status.Server{s.status, s.readers.server} {
		if server != nil {
			_ = server.Shutdown(ctx) // cuts responses that are still sent
		}
	}
	s.readers.close()
	s.group.Wait()
}
