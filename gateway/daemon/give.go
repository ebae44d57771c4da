package daemon

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/gateway/boottime"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/gateway/handover"
	"sluice.dev/sluice/gateway/owners"
	"sluice.dev/sluice/gateway/workers"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/xdpprog"
)

// errGave ends a daemon whose sockets, tables and locks are another process's now. It must touch
// nothing of them on its way out.
var errGave = errors.New("handed over")

// giving is what the daemon needs to hand over to a next process.
type giving struct {
	listener net.Listener  // nil if it could not be made
	done     chan struct{} // closed when everything was given
	// predecessors are the identities of the processes before, which get nothing back (follow).
	predecessors []string

	busy sync.Mutex // held while a next process is answered; guards told and vain
	told []string   // why the last one that was refused was
	vain attempts

	mu    sync.Mutex // guards below
	over  bool       // this process is ending, and gives nothing any more
	given bool       // an offer is out: what a next process has read must not change
	conn  *net.UnixConn
}

// offer describes what is given, beside the files.
type offer struct {
	Shapes       []xsk.Shape   // of the workers' memory
	Hops         []header.Addr // that packets leave by: who takes over resolves them before
	Predecessors []string
	Checks       []endpointhealth.Known
	HostLink     bool // there is a lock on it
	// Types is an empty state, by the encoder that the state will come from: who has decoded it
	// decodes the state in a part of the time.
	Types []byte
}

// Files of an offer that precede those of the shapes.
const (
	fileFlows = iota
	filePins
	filePrograms // lock on the pins of programs and maps
	fileStatus   // listening
	fileHandOver // listening
	filePulse    // listening
	fileHostLink // lock, if there is one
)

// state is what stops to change when the workers stop.
type state struct {
	StoppedAt uint64 // the first worker, by CLOCK_BOOTTIME
	PausedAt  uint64 // all of them
	Used      [2]uint32
	Custody   workers.Custody
}

// serveHandOver answers processes that want to take over, one after the other, until ctx is done or
// one has all. Without its socket a next process takes over after this one's end.
func (d *Daemon) serveHandOver(ctx context.Context) {
	if d.giving.listener == nil {
		l, err := status.Listen(d.fixed.HandOverSocket())
		if err != nil {
			d.log.Warn("no next process can take over while this one runs", "error", err)
			return
		}
		d.giving.listener = l
	}
	l := d.giving.listener
	closes := context.AfterFunc(ctx, func() { l.Close() })
	said := ""
	for ctx.Err() == nil {
		c, err := l.Accept()
		switch {
		case err == nil:
			if d.giveOnce(ctx, c.(*net.UnixConn)) {
				closes() // not any more: the socket is the next process's
				return
			}
		case ctx.Err() == nil: // EMFILE or ENFILE, which pass: who asks waits meanwhile
			if why := err.Error(); why != said {
				said = why
				d.log.Warn("a next process that asks for a hand-over has to wait", "error", err)
			}
			pause(ctx, retryEvery)
		}
	}
	l.Close() // the function above may not have done it yet, and the socket must be gone
}

// pause waits, but not after ctx is done.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// giveOnce answers one process, and reports whether that was the last. ctx must not end while
// something is given (endGiving).
func (d *Daemon) giveOnce(ctx context.Context, u *net.UnixConn) (last bool) {
	defer context.AfterFunc(ctx, func() { u.Close() })()
	g := &d.giving
	g.busy.Lock()
	if !g.begin(u) {
		g.busy.Unlock()
		d.refuse(ctx, u)
		return false
	}
	defer g.busy.Unlock()
	if d.give(ctx, u) {
		close(g.done)
		return true
	}
	return false
}

// refuse tells a process that asks while this one ends that it does.
func (d *Daemon) refuse(ctx context.Context, u *net.UnixConn) {
	c, err := handover.NewConn(u)
	if err != nil {
		u.Close()
		return
	}
	defer c.Close()
	_, _ = handover.Give(ctx, c, &giver{d: d}, status.ThisBuild().String(), handover.DefaultTimes)
}

// begin notes the process that is answered; false if this one is ending.
func (g *giving) begin(u *net.UnixConn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conn = u
	return !g.over
}

// ending reports whether nothing is given any more.
func (g *giving) ending() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.over
}

// offer begins what a next process reads, or ends it. It is false if this process is ending.
func (g *giving) offer(begins bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.given = begins && !g.over
	return g.given
}

// end makes sure that nothing is offered any more. A next process that has not asked for anything
// yet may take a minute until it does, or for ever: it is not waited for.
func (g *giving) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	if g.conn != nil && !g.given {
		g.conn.Close()
	}
}

// endGiving waits for a hand-over that is under way, and reports whether everything was given: then
// nothing is this process's to stop. Nothing is given afterwards.
func (d *Daemon) endGiving() (gave bool) {
	g := &d.giving
	g.end()
	g.busy.Lock()
	defer g.busy.Unlock()
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// give answers one process, and reports whether it has all now.
func (d *Daemon) give(ctx context.Context, u *net.UnixConn) (gave bool) {
	c, err := handover.NewConn(u)
	if err != nil {
		u.Close()
		d.log.Warn("hand-over refused", "error", err)
		return false
	}
	g := &giver{d: d}
	gave, err = handover.Give(ctx, c, g, status.ThisBuild().String(), handover.DefaultTimes)
	if gave {
		return true // giving.conn stays open to the process's end: the other one waits for that
	}
	c.Close()
	var refused *handover.RefusedError
	if errors.As(err, &refused) {
		if !slices.Equal(d.giving.told, refused.Reasons) { // it asks again
			d.log.Warn("a next process waits for this one's end, as it cannot take over", "why", refused.Reasons)
		}
		d.giving.told = refused.Reasons
	} else {
		d.log.Warn("a next process did not take over; this one goes on", "error", err)
	}
	d.giving.vain.note(g.version, err, time.Now())
	return false
}

// attempts are those of one version that got an offer and failed (handover.PeerError). Each stops
// the control loop for a moment, and maybe the workers: whoever supervises a next process that
// cannot take over starts it again without end.
type attempts struct {
	version string
	n       int
	last    time.Time
}

const (
	mostAttempts = 3 // in a row
	restAfter    = 10 * time.Minute
)

// note counts an attempt that ended with err, if that is the other side's.
func (a *attempts) note(version string, err error, now time.Time) {
	var peer *handover.PeerError
	if !errors.As(err, &peer) {
		return
	}
	if a.version != version || now.Sub(a.last) > restAfter {
		*a = attempts{version: version}
	}
	a.n, a.last = a.n+1, now
}

// tooMany returns an error if the version is to be refused.
func (a *attempts) tooMany(version string, now time.Time) error {
	if a.version != version || a.n < mostAttempts || now.Sub(a.last) > restAfter {
		return nil
	}
	return fmt.Errorf("%d attempts of this version failed after the offer, see what they logged; it is refused "+
		"until %s", a.n, a.last.Add(restAfter).UTC().Format(time.RFC3339))
}

// giver implements handover.Giver.
type giver struct {
	d       *Daemon
	version string // of the next process
	offered bool   // undone by Continue
	stopped bool
	collect func()       // garbage again; nil while that is done
	states  *gob.Encoder // to out
	out     bytes.Buffer
}

// Facts implements handover.Giver.
func (g *giver) Facts(h *handover.Hello) ([]handover.Fact, error) {
	d := g.d
	g.version = h.Version
	switch {
	case d.giving.ending():
		return nil, errors.New("it is ending")
	case g.d.giving.vain.tooMany(h.Version, time.Now()) != nil:
		return nil, &handover.BarredError{Reason: g.d.giving.vain.tooMany(h.Version, time.Now()).Error()}
	case h.Identity != "" && slices.Contains(d.giving.predecessors, h.Identity):
		// No BarredError: it could start once this one has ended, as where an update is taken back.
		return nil, errors.New("it has followed that process's pod, which is to end")
	}
	if ids := d.stalled(); len(ids) > 0 {
		return nil, fmt.Errorf("worker %d stands still, and could not be stopped between two packets: see the "+
			"condition worker in sluice status", ids[0])
	}
	return facts(d.fixed, d.frames.Size, &d.plan, d.flows.Table.Layout()), nil
}

// facts are what two processes must have alike to hand over. What else is different in their
// configurations takes effect in the next one.
func facts(c *config.Configuration, frameSize int, plan *devices.Plan, table string) []handover.Fact {
	var names []string
	for i, f := range c.Interfaces {
		names = append(names, fmt.Sprintf("%s (%d queues, mode %s, zeroCopy %s)", f.Name, len(plan.Places[i]), f.Mode,
			f.ZeroCopy))
	}
	link := "none"
	if c.HostLink.Enabled() {
		ours, kernels := c.Tuning.HostLinkEnds()
		link = fmt.Sprint(ours, " ", kernels, " ", c.HostLink.Addresses)
	}
	namespace, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		namespace = err.Error()
	}
	return []handover.Fact{
		{What: "network namespace", Is: namespace},
		{What: "interfaces", Is: strings.Join(names, ", ")},
		{What: "sockets", Is: fmt.Sprintf("txBudget %d, busyPoll %s, busyPollBudget %d", c.Sockets.TxBudget,
			c.Sockets.BusyPoll, c.Sockets.BusyPollBudget)},
		{What: "workers", Is: fmt.Sprintf("%d with %s", plan.Workers, workers.Layout())},
		{What: "frames", Is: fmt.Sprintf("%d of %d bytes for each queue, rings of %d", c.Tuning.FramesPerQueue(),
			frameSize, c.Tuning.RingSize)},
		{What: "flow table", Is: table},
		{What: "affinity pins", Is: flows.PinsLayout(c)},
		{What: "fragments", Is: fmt.Sprintf("%d datagrams, %d held", c.Tuning.Fragments, c.Tuning.HeldFragments())},
		{What: "host link", Is: link},
		{What: "BPF maps", Is: xdpprog.MapLayout()},
		{What: "bpfFS", Is: filepath.Clean(c.BPFFS)},
	}
}

// Offer implements handover.Giver.
func (g *giver) Offer(ctx context.Context) (_ []byte, files []int, err error) {
	d := g.d
	patience, cancel := context.WithTimeout(ctx, handover.DefaultTimes.Answer/2)
	defer cancel()
	if err := d.ports.Pause(patience); err != nil {
		return nil, nil, err
	}
	g.offered = true
	d.steer.Pause()
	if !d.giving.offer(true) {
		return nil, nil, errors.New("it is ending")
	}
	o := offer{Hops: d.readyHops(), HostLink: d.hostLock >= 0, Checks: d.checks.Known()}
	if id := identity(); id != "" {
		o.Predecessors = owners.Add(d.giving.predecessors, id)
	}
	listening, err := descriptors(d.servers.listener, d.giving.listener, d.pulses.listener)
	if err != nil {
		return nil, nil, err
	}
	files = append([]int{d.flows.FD(), d.pins.FD(), d.steer.LockFD()}, listening...)
	if o.HostLink {
		files = append(files, d.hostLock)
	}
	shapes, more := d.workers.Shapes()
	o.Shapes = shapes
	g.states = gob.NewEncoder(&g.out)
	if err := g.states.Encode(&state{}); err != nil {
		return nil, nil, err
	}
	o.Types = bytes.Clone(g.out.Bytes())
	g.out.Reset()
	b, err := encode(&o)
	g.collect = holdGC()
	return b, append(files, more...), err
}

// holdGC collects garbage, and then none until the caller resumes it: a collection takes a worker's
// time, or that of a hand-over while packets wait.
func holdGC() (resume func()) {
	runtime.GC()
	percent := debug.SetGCPercent(-1)
	return func() { debug.SetGCPercent(percent) }
}

// Stop implements handover.Giver.
func (g *giver) Stop(ctx context.Context) ([]byte, error) {
	d := g.d
	d.reader.Pause() // these two and the workers are all that have a handle of the flow table
	d.explain.Pause()
	g.stopped = true
	var s state
	var err error
	within := handover.DefaultTimes.Assume
	if deadline, ok := ctx.Deadline(); ok {
		within = time.Until(deadline)
	}
	if s.Custody, s.StoppedAt, err = d.workers.Pause(within); err != nil {
		return nil, fmt.Errorf("workers do not stop: %w", err)
	}
	s.PausedAt = boottime.Nanos()
	if s.Used, err = d.flows.Table.Used(); err != nil {
		return nil, err
	}
	err = g.states.Encode(&s)
	return g.out.Bytes(), err
}

// Continue implements handover.Giver.
func (g *giver) Continue() {
	d := g.d
	if g.stopped {
		d.workers.Resume()
		d.explain.Resume()
		d.reader.Resume()
	}
	if g.collect != nil {
		g.collect()
	}
	if g.offered {
		d.giving.offer(false)
		d.steer.Resume()
		d.ports.Resume()
	}
}

// readyHops lists the neighbours that packets leave by.
func (d *Daemon) readyHops() (list []header.Addr) {
	for id := range nexthop.ID(nexthop.MaxHops - 1) {
		if h := d.hops.Hop(id); h != nil && h.Kind == nexthop.OnLink && h.Ready {
			list = append(list, h.Addr)
		}
	}
	return list
}

// descriptors returns those of listeners, which stay theirs.
func descriptors(listeners ...net.Listener) (list []int, err error) {
	for _, l := range listeners {
		c, ok := l.(syscall.Conn)
		if !ok {
			return nil, fmt.Errorf("%T has no descriptor", l)
		}
		raw, err := c.SyscallConn()
		if err != nil {
			return nil, err
		}
		if err := raw.Control(func(fd uintptr) { list = append(list, int(fd)) }); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func decode(b []byte, v any) error { return gob.NewDecoder(bytes.NewReader(b)).Decode(v) }
