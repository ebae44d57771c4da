package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/bench/topo"
	"sluice.dev/sluice/control/status"
)

// Config says what to show.
type Config struct {
	Sluice string    // the gateway's binary
	Out    io.Writer // where to write
	Keep   bool      // after the traffic, leave everything standing until ctx is done
	Short  bool      // less of everything
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
	p       *paper
	began   time.Time
	net     *topo.Net
	client  *topo.Host
	gw      *gateway
	web     []*topo.Host // the endpoints of web
	flows   *topo.Flows  // the long-lived ones
	before  map[*topo.Host]topo.Counters
	started time.Duration // of the daemon, until it forwarded
	applied status.StatusView
}

// act is one part. Its error means that it could not be carried out; what it found
// goes to the paper.
type act struct {
	title string
	play  func(context.Context) error
}

// Run performs the demo and removes everything it made. It returns nil only if
// every expectation was met.
func Run(ctx context.Context, c Config) error {
	d := &demo{Config: c, scale: fullScale, p: newPaper(c.Out), began: time.Now()}
	if c.Short {
		d.scale = shortScale
	}
	binary, err := filepath.Abs(c.Sluice)
	if err != nil {
		return err
	}
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("the gateway's binary: %w; build it with `make build`, or name it with --sluice", err)
	}
	if os.Geteuid() != 0 {
		return errors.New("network namespaces, XDP and AF_XDP need root")
	}
	d.Sluice = binary
	dir, err := makeDirectory()
	if err != nil {
		return err
	}
	err = d.perform(ctx, dir)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		d.p.say("interrupted; everything is being removed")
		return errors.Join(errors.New("interrupted"), d.remove(dir))
	}
	if err != nil {
		d.p.fail("the demo can be carried out: " + err.Error())
	}
	d.printLog()
	if err := d.remove(dir); err != nil {
		d.p.fail("everything is removed: " + err.Error())
	}
	return d.verdict()
}

// perform plays all acts.
func (d *demo) perform(ctx context.Context, dir string) error {
	d.p.muted = func() bool { return ctx.Err() != nil }
	if err := d.build(dir); err != nil {
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
func (d *demo) build(dir string) (err error) {
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
	// topo lets hosts use almost all ports for themselves; a gateway keeps the
	// range of its SNAT ports free. This is the kernel's default.
	if err := d.net.Gateway.SetSysctl("net.ipv4.ip_local_port_range", "32768 60999"); err != nil {
		return err
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
	d.gw, err = newGateway(d.net.Gateway, d.Sluice, dir)
	return err
}

func (d *demo) hosts() []*topo.Host {
	return append([]*topo.Host{d.client, d.net.Gateway}, d.net.Backends...)
}

// makeDirectory makes the working directory on a tmpfs, where the flow table
// should be: it is memory that outlives the daemon, and nothing to write to a disk.
func makeDirectory() (string, error) {
	for _, parent := range []string{"/dev/shm", "/run"} {
		var st unix.Statfs_t
		if unix.Statfs(parent, &st) == nil && st.Type == unix.TMPFS_MAGIC {
			return os.MkdirTemp(parent, "sluice-demo-")
		}
	}
	return os.MkdirTemp("", "sluice-demo-")
}

// remove takes everything down, whatever state it is in.
func (d *demo) remove(dir string) error {
	var errs []error
	if d.flows != nil {
		d.flows.Stop()
	}
	if d.net != nil {
		errs = append(errs, d.net.Close()) // ends the daemon too
		left, err := d.net.Leftovers()
		errs = append(errs, err)
		if len(left) > 0 {
			errs = append(errs, fmt.Errorf("left over: %v", left))
		}
	}
	if d.gw != nil {
		d.gw.client.Close()
		errs = append(errs, d.gw.log.Close())
	}
	// A daemon that was killed leaves its mount to its successor; here there is none.
	_ = unix.Unmount(filepath.Join(dir, bpfDir), unix.MNT_DETACH) // an error if there is none
	return errors.Join(append(errs, os.RemoveAll(dir))...)
}

// tailLines is how much of the daemon's log is printed when something failed.
const tailLines = 40

func (d *demo) printLog() {
	if len(d.p.failed) == 0 || d.gw == nil {
		return
	}
	d.p.say("the end of the daemon's log:")
	for _, line := range d.gw.logTail(tailLines) {
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
