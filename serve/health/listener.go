package health

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/serve/web"
)

// listener answers for one Service at one address and port.
type listener struct {
	namespace, name string
	serving         func() bool
	// local is the number of local ready endpoints of the listener's family. Ports stores it,
	// requests load it.
	local atomic.Int64

	stop context.CancelFunc
	done chan struct{} // closed when the listener no longer serves
}

// listen opens a port for a Service.
func (p *Ports) listen(ctx context.Context, at netip.AddrPort, c *compiler.HealthCheck) error {
	network := "tcp6" // IPv6 only: a socket for :: must not accept IPv4
	if at.Addr().Is4() {
		network = "tcp4"
	}
	var config net.ListenConfig
	socket, err := config.Listen(ctx, network, at.String())
	if err != nil {
		return err
	}
	l := &listener{namespace: c.Namespace, name: c.Name, serving: p.config.Serving, done: make(chan struct{})}
	l.local.Store(int64(localOf(c, at.Addr())))
	life, stop := context.WithCancel(ctx)
	l.stop = stop
	p.open[at] = l
	p.limit.Info(p.config.Log, time.Now(), "health check node port open", "service", c.Namespace+"/"+c.Name,
		"address", at)
	go func() {
		defer close(l.done)
		if err := web.Serve(life, socket, web.ServeConfig{Handler: l, Log: p.config.Log, Limit: p.connections,
			Once: true}); err != nil {
			p.config.Log.Warn("health check node port failed; opening it again", "service", c.Namespace+"/"+c.Name,
				"address", at, "error", err)
		}
	}()
	return nil
}

// close closes a port and waits for it, so that it can be opened again.
func (p *Ports) close(at netip.AddrPort) {
	l := p.open[at]
	l.stop()
	<-l.done
	delete(p.open, at)
	p.limit.Info(p.config.Log, time.Now(), "health check node port closed", "service", l.namespace+"/"+l.name,
		"address", at)
}

func (l *listener) of(c *compiler.HealthCheck) bool {
	return l.namespace == c.Namespace && l.name == c.Name
}

func (l *listener) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// ServeHTTP implements http.Handler. Any method and path gets the same answer, which equals
// kube-proxy's byte by byte (pkg/proxy/healthcheck/service_health.go). Weighted load balancers read
// the weight header.
func (l *listener) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	local, serving := l.local.Load(), l.serving()
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(local, 10))
	code := http.StatusServiceUnavailable
	if local > 0 && serving {
		code = http.StatusOK
	}
	writeJSON(w, code,
		fmt.Appendf(nil,
			"{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": %q\n\t},\n\t\"localEndpoints\": "+
				"%d,\n\t\"serviceProxyHealthy\": %t\n}",
			l.namespace, l.name, local, serving))
}
