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
	// Report replaces what is wrong with the ports.
	Report func([]objects.Problem)
	Log    *slog.Logger
	// Retry is how often a port that cannot be had is tried again; 0 is web.DefaultRetry.
	Retry time.Duration
	// Beats, unless nil, gets the heartbeat of Run.
	Beats *heartbeat.Set
}

// ReasonFailed is the reason of the Problem, and so of the Event, as kube-proxy has it
// (pkg/proxy/healthcheck/service_health.go).
const ReasonFailed objects.Reason = "FailedToStartServiceHealthcheck"

// Ports are the health check node ports of all Services: one listener for each
// Service, family and address. What is wanted is set at any time and from any
// goroutine; Run's goroutine alone opens and closes.
type Ports struct {
	config PortsConfig
	wake   wake.Flag
	// connections are those of all ports.
	connections *web.Limit
	limit       logs.Limit // of lines about ports that open and close

	mu   sync.Mutex // guards want
	want wanted

	// Only Run's goroutine uses these.
	open     map[netip.AddrPort]*listener
	reported []objects.Problem // the last report; not empty: there is something to try again
	whole    bool              // done is what is open, and nothing failed
	done     wanted
}

// wanted is what should be open. The lists are never written to.
type wanted struct {
	checks    []compiler.HealthCheck
	addresses []netip.Addr
}

// Bounds on the resources that clients and objects can make the daemon use.
const (
	// maxListeners: each costs a descriptor and a goroutine. It is enough for 2,000
	// Services in two families at four addresses each.
	maxListeners = 16384
	// maxConnections of all ports together.
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
		select {
		case <-ctx.Done():
			return
		case <-time.After(restFactor * time.Since(began)):
		}
	}
}

// restFactor is how much longer than a pass the rest after it is. A pass over 2,000
// Services in two families takes 14 ms where ports come or go.
const restFactor = 9

// reconcile opens and closes until what is open is what is wanted.
func (p *Ports) reconcile(ctx context.Context) {
	p.mu.Lock()
	want := p.want
	p.mu.Unlock()
	if p.whole && !p.anyEnded() && p.count(&want) {
		p.done = want
		return
	}
	owners, failed := p.owners(&want)
	// All closings come first: a port may have moved from one Service to another.
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

// count applies a want that differs from done in counts only, as nearly all do, by one comparison
// for each check. It returns false for any other.
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

// owners returns the health check of each address and port, and those that cannot be opened.
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
				failed[at] = p.failure(c, fmt.Errorf("the port is that of Service %s/%s", other.Namespace, other.Name))
				continue
			}
			if len(owners) == maxListeners {
				failed[at] = p.failure(c,
					fmt.Errorf("%d addresses and ports are listened at for other Services, the most there may be: "+
						"select fewer addresses by nodeAddresses", maxListeners))
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
	// The text is kube-proxy's, so that a search for it finds this one, too.
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
			". Load balancers get no answer there; what they send is forwarded. Free the port: it is tried again",
		Severity: objects.Warning, Reason: ReasonFailed,
	}
}

// Source is where Problems of the ports come from.
func Source() objects.Source { return objects.Source{Kind: "health"} }

func (p *Ports) anyEnded() bool {
	for _, l := range p.open {
		if l.ended() {
			return true
		}
	}
	return false
}
