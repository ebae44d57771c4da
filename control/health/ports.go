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

	"sluice.dev/sluice/control"
	"sluice.dev/sluice/control/web"
)

// PortsConfig is what Ports work with.
type PortsConfig struct {
	// Serving is asked at every request; see Proxy.Serving.
	Serving func() bool
	// NodeName is how this node calls itself in messages.
	NodeName string
	// Report replaces what is wrong with the ports.
	Report func([]control.Problem)
	Log    *slog.Logger
	// Retry is how often a port that cannot be had is tried again; 0 is web.DefaultRetry.
	Retry time.Duration
}

// ReasonFailed is that of the Problem, and so of the Event: kube-proxy's word
// (pkg/proxy/healthcheck/service_health.go).
const ReasonFailed control.Reason = "FailedToStartServiceHealthcheck"

// Ports are the health check node ports of all Services: one listener for each
// Service, family and address. What is wanted is set at any time and from any
// goroutine; Run's goroutine alone opens and closes.
type Ports struct {
	config PortsConfig
	wake   chan struct{}

	mu        sync.Mutex // guards the next two
	checks    []control.HealthCheck
	addresses []netip.Addr

	// Only Run's goroutine uses these.
	open map[netip.AddrPort]*listener
	told []control.Problem // what there is to try again
}

// failure is a port that could not be had, in whose words and for which Service.
type failure struct{ service, message string }

// NewPorts returns Ports that open nothing until Run.
func NewPorts(c PortsConfig) *Ports {
	if c.Retry == 0 {
		c.Retry = web.DefaultRetry
	}
	return &Ports{config: c, wake: make(chan struct{}, 1), open: map[netip.AddrPort]*listener{}}
}

// SetHealthChecks implements control.HealthChecks: it hands over and returns.
func (p *Ports) SetHealthChecks(checks []control.HealthCheck) {
	p.mu.Lock()
	p.checks = checks
	p.mu.Unlock()
	p.poke()
}

// SetAddresses says where to listen: the node-port addresses, or 0.0.0.0 and :: for
// all addresses of a family.
func (p *Ports) SetAddresses(addresses []netip.Addr) {
	p.mu.Lock()
	p.addresses = slices.Clone(addresses)
	p.mu.Unlock()
	p.poke()
}

func (p *Ports) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run listens where it should until ctx ends. It returns when every port is closed.
func (p *Ports) Run(ctx context.Context) {
	defer func() {
		for at := range p.open {
			p.close(at)
		}
	}()
	retry := time.NewTicker(p.config.Retry)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-retry.C:
			if len(p.told) == 0 && !p.anyEnded() {
				continue
			}
		}
		began := time.Now()
		p.reconcile(ctx)
		// Thousands of Services that change all the time must not take a core.
		select {
		case <-ctx.Done():
			return
		case <-time.After(restFactor * time.Since(began)):
		}
	}
}

// restFactor is how much longer than a pass the rest after it is. A pass over 2,000
// Services in two families takes 14 ms.
const restFactor = 9

// reconcile opens and closes until what is open is what is wanted.
func (p *Ports) reconcile(ctx context.Context) {
	p.mu.Lock()
	checks, addresses := p.checks, p.addresses
	p.mu.Unlock()
	wanted := make(map[netip.AddrPort]*control.HealthCheck)
	failed := make(map[netip.AddrPort]failure)
	for i := range checks {
		c := &checks[i]
		for _, a := range addresses {
			if a.Is4() && !c.V4 || !a.Is4() && !c.V6 {
				continue
			}
			at := netip.AddrPortFrom(a, c.Port)
			if other := wanted[at]; other != nil {
				failed[at] = p.failure(c, fmt.Errorf("the port is that of Service %s/%s", other.Namespace, other.Name))
				continue
			}
			wanted[at] = c
		}
	}
	// All closings come first: a port may have moved from one Service to another.
	for at, l := range p.open {
		if c := wanted[at]; c == nil || !l.of(c) || l.ended() {
			p.close(at)
		}
	}
	for at, c := range wanted {
		if l := p.open[at]; l != nil {
			l.local.Store(int64(localOf(c, at.Addr())))
		} else if err := p.listen(ctx, at, c); err != nil {
			failed[at] = p.failure(c, err)
		}
	}
	p.tell(failed)
}

func localOf(c *control.HealthCheck, a netip.Addr) int {
	if a.Is4() {
		return c.Local4
	}
	return c.Local6
}

func (p *Ports) failure(c *control.HealthCheck, err error) failure {
	service := c.Namespace + "/" + c.Name
	// The words are kube-proxy's, so that whoever looks for them finds them.
	return failure{service, fmt.Sprintf("node %s failed to start healthcheck %q on port %d: %v", p.config.NodeName, service, c.Port, err)}
}

// tell says what is wrong, one Problem for each Service, if it is not what was said
// before.
func (p *Ports) tell(failed map[netip.AddrPort]failure) {
	var problems []control.Problem
	told := make(map[string]bool) // Services
	for _, at := range slices.SortedFunc(maps.Keys(failed), netip.AddrPort.Compare) {
		if f := failed[at]; !told[f.service] {
			told[f.service] = true
			problems = append(problems, f.problem())
		}
	}
	if !slices.Equal(problems, p.told) {
		p.told = problems
		p.config.Report(problems)
	}
}

func (f failure) problem() control.Problem {
	namespace, name, _ := strings.Cut(f.service, "/")
	return control.Problem{
		Source:   Source(),
		Object:   control.ObjectID{Kind: control.KindService, Namespace: namespace, Name: name},
		Field:    "spec.healthCheckNodePort",
		Message:  f.message + ". Load balancers get no answer there; what they send is forwarded. Free the port: it is tried again",
		Severity: control.Warning, Reason: ReasonFailed,
	}
}

// Source is where Problems of the ports come from.
func Source() control.Source { return control.Source{Kind: "health"} }

func (p *Ports) anyEnded() bool {
	for _, l := range p.open {
		if l.ended() {
			return true
		}
	}
	return false
}
