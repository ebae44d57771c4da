package health

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/logs"
	"sluice.dev/sluice/internal/wake"
	"sluice.dev/sluice/serve/web"
)

// PortsConfig configures Ports.
type PortsConfig struct {
	// Serving is called at every request; see Proxy.Serving.
	Serving func() bool
	// NodeName is this node's name in messages.
	NodeName string
	// Report replaces the problems of the ports.
	Report func([]objects.Problem)
	Log    *slog.Logger
	// Retry is the interval of attempts to open a port that is in use; 0: web.DefaultRetry.
	Retry time.Duration
	// Beats has the heartbeat of Run; it may be nil.
	Beats *heartbeat.Set
}

// ReasonFailed is the reason of the Problem and of its Event, as in kube-proxy
// (pkg/proxy/healthcheck/service_health.go).
const ReasonFailed objects.Reason = "FailedToStartServiceHealthcheck"

// Ports are the health check node ports of all Services: one listener for each Service, family and
// address. Any goroutine may set at any time which ports are wanted; only Run's goroutine opens and
// closes them.
type Ports struct {
	config PortsConfig
	wake   wake.Flag
	// connections limits the connections of all ports together.
	connections *web.Limit
	limit       logs.Limit // of lines about ports that open and close

	mu   sync.Mutex // guards want
	want wanted

	// Only Run's goroutine uses these.
	open     map[netip.AddrPort]*listener
	reported []objects.Problem // the last report; if it is not empty, some ports must be tried again
	whole    bool              // the open ports equal done, and none failed
	done     wanted
}

// wanted has the ports that should be open. Its lists are never modified.
type wanted struct {
	checks    []compiler.HealthCheck
	addresses []netip.Addr
}

// Bounds on the resources that clients and objects can make the daemon use.
const (
	// maxListeners bounds the listeners, each of which costs a descriptor and a goroutine. It is
	// enough for 2,000 Services in two families at four addresses each.
	maxListeners = 16384
	// maxConnections bounds the connections of all ports together.
	maxConnections = 512
	linesPerSecond = 10
)

// failure is a port that could not be opened: its Service and a message.
type failure struct{ service, message string }

// NewPorts returns Ports that open nothing until Run.
func NewPorts(c PortsConfig) *Ports {
	if c.Retry == 0 {
		c.Retry = web.DefaultRetry
	}
	return &Ports{config: c, wake: wake.NewFlag(), connections: web.NewLimit(maxConnections),
		limit: logs.Limit{PerSecond: linesPerSecond}, open: map[netip.AddrPort]*listener{}}
}

// SetHealthChecks implements loop.HealthChecks. It does not block.
func (p *Ports) SetHealthChecks(checks []compiler.HealthCheck) {
	p.mu.Lock()
	p.want.checks = checks
	p.mu.Unlock()
	p.wake.Raise()
}

// SetAddresses sets the addresses to listen on: the node-port addresses, or 0.0.0.0 and :: for all
// addresses of a family.
func (p *Ports) SetAddresses(addresses []netip.Addr) {
	p.mu.Lock()
	p.want.addresses = slices.Clone(addresses)
	p.mu.Unlock()
	p.wake.Raise()
}

// Run keeps the wanted ports open until ctx ends. It returns when every port is closed.
func (p *Ports) Run(ctx context.Context) {
	defer func() {
		for at := range p.open {
			p.close(at)
		}
	}()
	retry := time.NewTicker(p.config.Retry)
	defer retry.Stop()
	beat := p.config.Beats.Add("health check node ports", heartbeat.DefaultBounds)
	defer p.config.Beats.Remove(beat)
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-retry.C:
			if len(p.reported) == 0 && !p.anyEnded() {
				continue
			}
		}
		began := time.Now()
		beat.Beat()
		p.reconcile(ctx)
		beat.Rest()
		// Thousands of Services that change all the time must not take a core.
		if !wake.After(ctx, restFactor*time.Since(began)) {
			return
		}
	}
}

// restFactor is the ratio of the rest after a pass to the pass. A pass over 2,000 Services in two
// families takes 14 ms if ports are opened or closed.
const restFactor = 9

// reconcile opens and closes ports until the open ones are the wanted ones.
func (p *Ports) reconcile(ctx context.Context) {
	p.mu.Lock()
	want := p.want
	p.mu.Unlock()
	if p.whole && !p.anyEnded() && p.count(&want) {
		p.done = want
		return
	}
	owners, failed := p.owners(&want)
	// Close first: a port may have moved from one Service to another.
	for at, l := range p.open {
		if c := owners[at]; c == nil || !l.of(c) || l.ended() {
			p.close(at)
		}
	}
	for at, c := range owners {
		if l := p.open[at]; l != nil {
			l.local.Store(int64(localOf(c, at.Addr())))
		} else if err := p.listen(ctx, at, c); err != nil {
			failed[at] = p.failure(c, err)
		}
	}
	p.whole, p.done = len(failed) == 0, want
	p.report(failed)
}

// count applies a want that differs from done only in counts, as nearly all do, with one comparison
// for each check. It returns false for other wants.
func (p *Ports) count(want *wanted) bool {
	if len(want.checks) != len(p.done.checks) || !slices.Equal(want.addresses, p.done.addresses) {
		return false
	}
	for i := range want.checks {
		same := p.done.checks[i]
		same.Local4, same.Local6 = want.checks[i].Local4, want.checks[i].Local6
		if same != want.checks[i] {
			return false
		}
	}
	for i := range want.checks {
		c := &want.checks[i]
		if *c == p.done.checks[i] {
			continue
		}
		for _, a := range want.addresses {
			if l := p.open[netip.AddrPortFrom(a, c.Port)]; l != nil {
				l.local.Store(int64(localOf(c, a)))
			}
		}
	}
	return true
}

// owners returns the health check for each address and port, and the failures.
func (p *Ports) owners(
	want *wanted,
) (owners map[netip.AddrPort]*compiler.HealthCheck, failed map[netip.AddrPort]failure) {
	owners, failed = make(map[netip.AddrPort]*compiler.HealthCheck), make(map[netip.AddrPort]failure)
	for i := range want.checks {
		c := &want.checks[i]
		for _, a := range want.addresses {
			if a.Is4() && !c.V4 || !a.Is4() && !c.V6 {
				continue
			}
			at := netip.AddrPortFrom(a, c.Port)
			if other := owners[at]; other != nil {
				failed[at] = p.failure(c, fmt.Errorf("the port belongs to Service %s/%s", other.Namespace, other.Name))
				continue
			}
			if len(owners) == maxListeners {
				failed[at] = p.failure(c,
					fmt.Errorf("other Services use all %d listeners: "+
						"select fewer addresses with nodeAddresses", maxListeners))
				continue
			}
			owners[at] = c
		}
	}
	return owners, failed
}

func localOf(c *compiler.HealthCheck, a netip.Addr) int {
	if a.Is4() {
		return c.Local4
	}
	return c.Local6
}

func (p *Ports) failure(c *compiler.HealthCheck, err error) failure {
	service := c.Namespace + "/" + c.Name
	// The text equals kube-proxy's, so that a search for that one finds this one.
	return failure{service, fmt.Sprintf("node %s failed to start healthcheck %q on port %d: %v", p.config.NodeName,
		service, c.Port, err)}
}

// report reports one Problem for each Service whose ports could not be opened, if the list differs
// from the last one.
func (p *Ports) report(failed map[netip.AddrPort]failure) {
	var problems []objects.Problem
	named := make(map[string]bool) // Services
	for _, at := range slices.SortedFunc(maps.Keys(failed), netip.AddrPort.Compare) {
		if f := failed[at]; !named[f.service] {
			named[f.service] = true
			problems = append(problems, f.problem())
		}
	}
	if !slices.Equal(problems, p.reported) {
		p.reported = problems
		p.config.Report(problems)
	}
}

func (f failure) problem() objects.Problem {
	namespace, name, _ := strings.Cut(f.service, "/")
	return objects.Problem{
		Source: Source(),
		Object: objects.ObjectID{Kind: objects.KindService, Namespace: namespace, Name: name},
		Field:  "spec.healthCheckNodePort",
		Message: f.message +
			". Load balancers get no answer there; their traffic is forwarded. Free the port: it is tried again",
		Severity: objects.Warning, Reason: ReasonFailed,
	}
}

// Source returns the source of the Problems of the ports.
func Source() objects.Source { return objects.Source{Kind: "health"} }

func (p *Ports) anyEnded() bool {
	for _, l := range p.open {
		if l.ended() {
			return true
		}
	}
	return false
}
