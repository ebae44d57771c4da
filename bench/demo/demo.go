package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sluice.dev/sluice/bench/launch"
	"sluice.dev/sluice/bench/topo"
	"sluice.dev/sluice/control/status"
)

// Config describes the demonstration.
type Config struct {
	Sluice string    // the gateway's binary
	Out    io.Writer // where to write
	Keep   bool      // after the traffic, leave everything standing until ctx is done
	Short  bool      // less of everything
	// Patience multiplies every bound of time, on machines that are slow; 0 is 1.
	Patience int
}

// ErrExpectation is wrapped by Run's error when something was not as expected.
var ErrExpectation = errors.New("not as expected")

// scale is how much of everything.
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

// demo is one performance.
type demo struct {
	Config
	scale
	p       *report
	began   time.Time
	net     *topo.Net
	client  *topo.Host
	gw      *launch.Gateway
	web     []*topo.Host // the endpoints of web
	flows   *topo.Flows  // the long-lived ones
	before  map[*topo.Host]topo.Counters
	started time.Duration // of the daemon, until it forwarded
	applied status.StatusView
}

// act is one part. Its error means that it could not be carried out; what it found
// goes to the report.
type act struct {
	title string
	play  func(context.Context) error
}

// Run performs the demo and removes everything it made. It returns nil only if
// every expectation was met.
func Run(ctx context.Context, c Config) error {
	d := &demo{Config: c, scale: fullScale, p: newReport(c.Out), began: time.Now()}
	if c.Short {
		d.scale = shortScale
	}
	d.Patience = max(1, c.Patience)
	var err error
	if d.Sluice, err = launch.Find(c.Sluice); err != nil {
		return err
	}
	d.sweep()
	err = d.perform(ctx)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		d.p.say("interrupted; everything is being removed")
		return errors.Join(errors.New("interrupted"), d.remove())
	}
	if err != nil {
		d.p.fail("the demo can be carried out: " + err.Error())
	}
	d.printLog()
	if err := d.remove(); err != nil {
		d.p.fail("everything is removed: " + err.Error())
	}
	return d.verdict()
}

// bound is a bound of time on this machine.
func (d *demo) bound(t time.Duration) time.Duration { return time.Duration(d.Patience) * t }

// perform plays all acts.
func (d *demo) perform(ctx context.Context) error {
	d.p.muted = func() bool { return ctx.Err() != nil }
	if err := d.build(); err != nil {
		return err
	}
	acts := []act{
		{"What stands where", d.place},
		{"HTTP, every request over a new connection", d.http},
		{"UDP", d.udp},
		{"The client's address", d.clientAddress},
		{"Endpoints come and go under load", d.churn},
		{"A backend is drained", d.drain},
		{"The daemon is killed under load", d.crash},
		{"What was counted", d.counted},
	}
	for i, a := range acts {
		d.p.heading(i+1, a.title)
		err := a.play(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("act %d: %w", i+1, err)
		}
	}
	if d.Keep {
		d.keep(ctx)
	}
	d.p.muted = func() bool { return false }
	d.p.heading(len(acts)+1, "SIGTERM, and the node is as it was")
	return d.leave()
}

// build makes the network, the servers and the gateway's files.
func (d *demo) build() (err error) {
	d.p.say("building the network and starting the gateway ...")
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
	return writeManifests(d.gw)
}

func (d *demo) hosts() []*topo.Host {
	return append([]*topo.Host{d.client, d.net.Gateway}, d.net.Backends...)
}

// sweep removes what demos left that were killed. That it cannot is no reason not to
// perform.
func (d *demo) sweep() {
	removed, err := launch.Sweep()
	for _, dir := range removed {
		d.p.say("removed %s of a run that was killed", dir)
	}
	if err != nil {
		d.p.say("cannot clean up after a killed run: %v", err)
	}
}

// remove takes everything down, in any state.
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

// tailLines is how much of the daemon's log is printed when something failed.
const tailLines = 40

func (d *demo) printLog() {
	if len(d.p.failed) == 0 || d.gw == nil {
		return
	}
	d.p.say("the end of the daemon's log:")
	lines := strings.Split(strings.TrimRight(d.gw.Log(), "\n"), "\n")
	for _, line := range lines[max(0, len(lines)-tailLines):] {
		d.p.say("| %s", line)
	}
}

// verdict is the last word, and what the exit status is made of.
func (d *demo) verdict() error {
	took := time.Since(d.began).Seconds()
	failed := len(d.p.failed)
	if failed == 0 {
		fmt.Fprintf(d.p.w, "\n%s in %.1f s\n", d.p.paint(green, fmt.Sprintf("All %d expectations met", d.p.met)), took)
		return nil
	}
	fmt.Fprintf(d.p.w, "\n%s after %.1f s:\n", d.p.paint(red, fmt.Sprintf("%d FAILED, %d met", failed, d.p.met)), took)
	for _, text := range d.p.failed {
		d.p.say("- %s", text)
	}
	return fmt.Errorf("%w: %d expectations", ErrExpectation, failed)
}
