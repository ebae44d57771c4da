package vip

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sluice.dev/sluice/bench/demo/console"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/reach"
	"sluice.dev/sluice/test/bed/topo"
)

// Config describes the demonstration.
type Config struct {
	Sluice, Controller, Announcer string // the programs
	Out                           io.Writer
	// Keep leaves the network up until ctx is done, instead of destroying a gateway.
	Keep bool
	// Patience multiplies every time limit, for slow machines; 0 is 1.
	Patience int

	wait time.Duration // limit of every wait, in tests; 0 is maxWait
}

// maxWait is the limit of every wait.
const maxWait = 30 * time.Second

// Numbers of the demonstration.
const (
	gateways = 2
	backends = 3
	requests = 400 // over new connections
	held     = 60  // connections that are open when a gateway is destroyed
)

var settings = reach.Settings{Addresses: `203.0.113.10-203.0.113.20, "2001:db8::10-2001:db8::20"`, DualStack: true}

// service is the Service that the demo applies. No kubelet runs pods: the demo writes the slice.
const service = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  allocateLoadBalancerNodePorts: false
  ports: [{port: 80, targetPort: 8080}]
`

// demo is one run.
type demo struct {
	Config
	p    *console.Console
	lab  *reach.Lab
	vips []netip.Addr // of the Service, one per family
	left []*reach.Gateway
	late machine.Lateness
}

// Run runs the demonstration and removes everything it made. It returns nil only if every
// expectation was met.
func Run(ctx context.Context, c Config) error {
	d := &demo{Config: c, p: console.New(c.Out)}
	d.Patience = max(1, c.Patience)
	var err error
	if d.Sluice, err = launch.Find(c.Sluice); err != nil {
		return err
	}
	for _, path := range []*string{&d.Controller, &d.Announcer} {
		if *path, err = filepath.Abs(*path); err == nil {
			_, err = os.Stat(*path)
		}
		if err != nil {
			return fmt.Errorf("%w; build it with `make build`", err)
		}
	}
	watched, stop := context.WithCancel(ctx)
	defer stop()
	go d.late.Watch(watched)
	if _, err := launch.Sweep(); err != nil {
		d.p.Say("cannot clean up after a killed run: %v", err)
	}
	return d.p.End(ctx, d.perform(ctx), d.logs, d.remove)
}

func (d *demo) perform(ctx context.Context) (err error) {
	d.lab, err = reach.New(reach.Config{Sluice: d.Sluice, Controller: d.Controller, Announcer: d.Announcer,
		Gateways: gateways, Backends: backends, Progress: d.Out, Named: d.Keep})
	if err != nil {
		return err
	}
	parts := []console.Part{
		{Title: "An API server, with the objects of the chart", Do: d.apiServer},
		{Title: "Address pools, and peers of the announcements", Do: d.objects},
		{Title: "A router: BIRD", Do: d.router},
		{Title: "A controller and two gateways", Do: d.gateways},
		{Title: "A Service of type LoadBalancer", Do: d.service},
		{Title: "Requests", Do: d.traffic},
		{Title: "A gateway is lost", Do: d.loss},
	}
	end := console.Part{Title: "The Service is deleted, and all processes end", Do: d.end}
	if !d.Keep {
		return d.p.Play(ctx, append(parts, end))
	}
	parts = parts[:len(parts)-1]
	if err := d.p.Play(ctx, parts); err != nil {
		return err
	}
	d.keep(ctx)
	d.p.Muted = func() bool { return false }
	d.p.Heading(len(parts)+1, end.Title)
	return end.Do(context.WithoutCancel(ctx))
}

// bound is a time limit on this machine.
func (d *demo) bound(t time.Duration) time.Duration { return time.Duration(d.Patience) * t }

// within is the time limit of an operation that waits for other processes, at most wakeUps times:
// on a busy machine each of them may wake as late as this one did.
func (d *demo) within(t time.Duration, wakeUps int) time.Duration {
	bound, _ := d.late.Bound(d.bound(t), wakeUps)
	return bound
}

// block prints a text unchanged.
func (d *demo) block(text string) {
	for _, line := range strings.Split(strings.Trim(text, "\n"), "\n") {
		d.p.Say("  %s", line)
	}
}

// kubectl prints the output that `kubectl get` has for a path of the API.
func (d *demo) kubectl(ctx context.Context, what, path string) error {
	var b strings.Builder
	if err := d.lab.Cluster.Get(ctx, &b, path); err != nil {
		return err
	}
	d.p.Say("$ kubectl get %s", what)
	d.block(b.String())
	return nil
}

// birdc prints the lines of BIRD's answer that contain a word; all lines without one.
func (d *demo) birdc(ctx context.Context, command, word string) error {
	out, err := d.lab.Router.Ask(ctx, command)
	if err != nil {
		return err
	}
	d.p.Say("$ birdc %s", command)
	for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if i > 0 && strings.Contains(line, word) { // the first is BIRD's version
			d.p.Say("  %s", line)
		}
	}
	return nil
}

// until waits for a condition, and returns the time from since until it held.
func (d *demo) until(ctx context.Context, since time.Time, is func(context.Context) error) (time.Duration, error) {
	err := topo.Until(ctx, d.bound(cmp.Or(d.wait, maxWait)), time.Millisecond, is)
	return time.Since(since), err
}

func (d *demo) logs() {
	if d.lab != nil {
		d.block(d.lab.Logs())
	}
}

func (d *demo) remove() error {
	if d.lab == nil {
		return nil
	}
	return d.lab.Close()
}
