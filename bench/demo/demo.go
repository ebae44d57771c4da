package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sluice.dev/sluice/bench/demo/console"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// Config describes the demonstration.
type Config struct {
	Sluice string    // the gateway's binary
	Out    io.Writer // receives the output
	Keep   bool      // after the traffic, leave the network up until ctx is done
	Short  bool      // smaller numbers of everything
	// Patience multiplies every time limit, for slow machines; 0 is 1.
	Patience int
}

// scale holds the numbers of requests, flows and changes.
type scale struct {
	requests  int // HTTP requests per way in
	udpFlows  int // per address family
	longFlows int // TCP connections that live through acts 5 to 7
	changes   int // of the endpoints
	probes    int // new connections after each change
}

var (
	fullScale  = scale{requests: 2000, udpFlows: 500, longFlows: 200, changes: 10, probes: 200}
	shortScale = scale{requests: 300, udpFlows: 100, longFlows: 60, changes: 4, probes: 80}
)

// demo is one run.
type demo struct {
	Config
	scale
	p       *console.Console
	net     *topo.Net
	client  *topo.Host
	gw      *launch.Gateway
	web     []*topo.Host // the endpoints of web
	flows   *topo.Flows  // the long-lived TCP connections
	before  map[*topo.Host]topo.Counters
	started time.Duration // time from the daemon's start until it forwarded
	applied status.StatusView
}

// Run runs the demo and removes everything it made. It returns nil only if every expectation was
// met.
// every expectation was met.
func Run(ctx context.Context, c Config) error {
	d := &demo{Config: c, scale: fullScale, p: console.New(c.Out)}
	if c.Short {
		d.scale = shortScale
	}
	d.Patience = max(1, c.Patience)
	var err error
	if d.Sluice, err = launch.Find(c.Sluice); err != nil {
		return err
	}
	d.sweep()
	return d.p.End(ctx, d.perform(ctx), d.printLog, d.remove)
}

// bound is a time limit on this machine.
func (d *demo) bound(t time.Duration) time.Duration { return time.Duration(d.Patience) * t }

// perform runs all acts.
func (d *demo) perform(ctx context.Context) error {
	if err := d.build(); err != nil {
		return err
	}
	acts := []console.Part{
		{Title: "Network and addresses", Do: d.place},
		{Title: "HTTP, every request over a new connection", Do: d.http},
		{Title: "UDP", Do: d.udp},
		{Title: "The client's address", Do: d.clientAddress},
		{Title: "Endpoints are added and removed under load", Do: d.churn},
		{Title: "A backend is drained", Do: d.drain},
		{Title: "The daemon is killed under load", Do: d.crash},
		{Title: "Counters", Do: d.counted},
	}
	if err := d.p.Play(ctx, acts); err != nil {
		return err
	}
	if d.Keep {
		d.keep(ctx)
	}
	d.p.Muted = func() bool { return false }
	d.p.Heading(len(acts)+1, "SIGTERM: the daemon leaves nothing behind")
	return d.leave()
}

// build makes the network, the servers and the gateway's files.
func (d *demo) build() (err error) {
	d.p.Say("building the network and starting the gateway ...")
	d.net, err = topo.New(topo.Config{Clients: 1, Backends: 4, Queues: 2, Named: d.Keep})
	if err != nil {
		return err
	}
	d.client, d.web = d.net.Clients[0], d.net.Backends[:3]
	for _, h := range append([]*topo.Host{d.net.Gateway}, d.net.Backends...) {
		if _, err := h.Serve(targetPort); err != nil {
			return err
		}
	}
	if err := d.net.Gateway.Forward(false); err != nil {
		return err
	}
	d.before = make(map[*topo.Host]topo.Counters)
	for _, h := range d.hosts() {
		if d.before[h], err = h.Counters(); err != nil {
			return err
		}
	}
	d.gw, err = launch.New(launch.Config{
		Sluice: d.Sluice, Host: d.net.Gateway, NodeName: nodeName, Patience: d.Patience,
		Options: "flows: {ipv4: 65536, ipv6: 65536}\n",
	})
	if err != nil {
		return err
	}
	return d.applyServices()
}

func (d *demo) hosts() []*topo.Host {
	return append([]*topo.Host{d.client, d.net.Gateway}, d.net.Backends...)
}

// sweep removes files and interfaces of demos that were killed. If it fails, the demo runs anyway.
func (d *demo) sweep() {
	removed, err := launch.Sweep()
	for _, dir := range removed {
		d.p.Say("removed %s of a killed run", dir)
	}
	if err != nil {
		d.p.Say("cannot clean up after a killed run: %v", err)
	}
}

// remove removes everything, in any state.
func (d *demo) remove() error {
	var errs []error
	if d.flows != nil {
		d.flows.Stop()
	}
	if d.gw != nil {
		errs = append(errs, d.gw.Close())
	}
	if d.net != nil {
		errs = append(errs, d.net.Close())
		left, err := d.net.Leftovers()
		errs = append(errs, err)
		if len(left) > 0 {
			errs = append(errs, fmt.Errorf("left over: %v", left))
		}
	}
	return errors.Join(errs...)
}

// tailLines is how many lines of the daemon's log are printed after a failure.
const tailLines = 40

func (d *demo) printLog() {
	if d.gw == nil {
		return
	}
	d.p.Say("the end of the daemon's log:")
	lines := strings.Split(strings.TrimRight(d.gw.Log(), "\n"), "\n")
	for _, line := range lines[max(0, len(lines)-tailLines):] {
		d.p.Say("| %s", line)
	}
}
