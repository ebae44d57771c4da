package daemon

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/boottime"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/gateway/handover"
	"sluice.dev/sluice/gateway/steering"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/xdpprog"
)

// taker implements handover.Taker.
type taker struct {
	d        *Daemon
	s        *standby
	found    devices.Found
	plan     devices.Plan
	program  *steering.Program
	prepared bool
	lock     *os.File // on the pins of programs and maps
	state    state
	states   *gob.Decoder // from in
	in       bytes.Buffer
	collect  func() // garbage again, see holdGC
	// CLOCK_BOOTTIME: when the state was read, when all was this process's, and when the last
	// worker ran.
	decodedAt, takenAt, ranAt uint64
}

// Facts implements handover.Taker.
func (k *taker) Facts() (list []handover.Fact, id string, err error) {
	c := k.d.config
	if k.found, err = devices.Find(c); err == nil {
		k.plan, err = devices.NewPlan(k.found.Devices, c)
	}
	if err != nil {
		return nil, "", err
	}
	return facts(c, k.found.Frames.Size, &k.plan, flows.Layout(c)), identity(), nil
}

// Lay implements handover.Taker: the verifier takes most of the time of a start. What this process
// cannot start without is looked at here, too. Nothing is mounted: where no BPF file system is,
// there are no maps to take over.
func (k *taker) Lay(context.Context) (err error) {
	c := k.d.config
	if !k.d.servers.guard.read {
		if err := k.d.secure(); err != nil {
			return err
		}
	}
	if err := xdpprog.CheckBPFFS(c.BPFFS); err != nil {
		return err
	}
	for i := range k.found.Devices {
		dev := &k.found.Devices[i]
		if err := steering.Replaceable(c, dev.Index, dev.Name); err != nil {
			return err
		}
	}
	mount, err := steering.FindMount(c.BPFFS, c.StateDir)
	if err != nil {
		return err
	}
	k.program, err = steering.Prepare(c, k.d.log)
	if errors.Is(err, xdpprog.ErrMisfit) { // a start replaces the maps
		return &handover.RefusedError{Reasons: []string{err.Error()}}
	}
	if err == nil {
		k.d.bpffs = mount
	}
	return err
}

// undo undoes Lay.
func (k *taker) undo() {
	if k.program != nil {
		_ = k.program.Discard()
	}
	k.program, k.d.bpffs = nil, nil
}

// Prepare implements handover.Taker. It goes the way of start, with what is given in place of what
// start makes.
func (k *taker) Prepare(ctx context.Context, b []byte, files []int) error {
	k.prepared, k.d.taking = true, true
	k.s.stop()
	d := k.d
	var o offer
	if err := decode(b, &o); err != nil {
		return err
	}
	first := fileHostLink
	if o.HostLink {
		first++
	}
	if len(files) < first {
		return fmt.Errorf("%d files", len(files))
	}
	d.loadAgain()
	if err := d.takeSeed(); err != nil {
		return err
	}
	d.steer = k.program
	d.giving.predecessors, d.checked = o.Predecessors, o.Checks
	d.hostLock = -1
	if o.HostLink {
		d.hostLock = files[fileHostLink]
	}
	k.lock = os.NewFile(uintptr(files[filePrograms]), "lock")
	if err := d.takeListeners(files[fileStatus], files[fileHandOver], files[filePulse]); err != nil {
		return err
	}
	taken, sockets, err := takeMemory(o.Shapes, files[first:])
	if err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{
		func(context.Context) error { return d.takeFlows(files[fileFlows], files[filePins]) },
		d.makeHostLink,
		func(context.Context) error { return d.makeDatapathOf(taken) },
		func(ctx context.Context) error { return d.ports.Adopt(ctx, sockets) },
		d.startMirror,
		func(ctx context.Context) error { return d.resolve(ctx, o.Hops) },
		d.confine, d.startControl, d.awaitSnapshot,
		func(context.Context) error { return d.workers.Ready(d.workersLife) },
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := step(d.life); err != nil {
			return err
		}
	}
	k.states = gob.NewDecoder(&k.in)
	k.in.Write(o.Types)
	if err := k.states.Decode(&k.state); err != nil {
		return err
	}
	k.collect = holdGC()
	return nil
}

// takeListeners makes listeners of descriptors.
func (d *Daemon) takeListeners(fds ...int) (err error) {
	for i, to := range []*net.Listener{&d.servers.listener, &d.giving.listener, &d.pulses.listener} {
		f := os.NewFile(uintptr(fds[i]), "listener")
		l, e := net.FileListener(f)
		f.Close()
		if err = errors.Join(err, e); e == nil {
			l.(*net.UnixListener).SetUnlinkOnClose(true)
			*to = l
		}
	}
	return err
}

// backlog is that of Go's own listeners where net.core.somaxconn is as the kernel has it.
const backlog = 4096

// listenAgain makes the listeners this process's in the eyes of who connects: SO_PEERCRED is of the
// process that has called listen(2) last (unix_listen, net/unix/af_unix.c). Probes look at that.
func listenAgain(listeners ...net.Listener) error {
	fds, err := descriptors(listeners...)
	for _, fd := range fds {
		err = errors.Join(err, unix.Listen(fd, backlog))
	}
	return err
}

// takeMemory maps the memory of all workers, with their sockets.
func takeMemory(shapes []xsk.Shape, files []int) (list []*xsk.UMEM, sockets [][]*xsk.Socket, err error) {
	for _, shape := range shapes {
		n := 1 + len(shape.Sockets)
		if len(files) < n {
			return nil, nil, errors.New("files of sockets are missing")
		}
		u, of, err := xsk.Take(shape, files[:n])
		if err != nil {
			return nil, nil, err
		}
		files, list, sockets = files[n:], append(list, u), append(sockets, of)
	}
	return list, sockets, nil
}

// takeFlows is openFlows with the files of the running process.
func (d *Daemon) takeFlows(table, pins int) (err error) {
	c := d.config
	d.noteDisk()
	if d.flows, err = flows.Take(c, os.NewFile(uintptr(table), "flows")); err != nil {
		return err
	}
	if d.pins, err = flows.TakePins(c, os.NewFile(uintptr(pins), "pins")); err != nil {
		return err
	}
	d.reader, err = flows.NewReader(d.flows.Table, &d.services)
	return err
}

// resolveFor bounds the wait for next hops. Packets to those that are not known by then are held,
// as after any start.
const resolveFor = 300 * time.Millisecond

// resolve makes the next hops known that the running process knows. The kernel knows them, too.
func (d *Daemon) resolve(ctx context.Context, hops []header.Addr) error {
	deadline := time.Now().Add(resolveFor)
	for {
		missing := 0
		for i := range hops {
			route := d.hops.View().Lookup(&hops[i])
			if h := d.hops.Hop(route.Hop); route.Hop == 0 || h == nil || !h.Ready {
				missing++
				d.hops.ResolveFirst(hops[i])
			}
		}
		if missing == 0 || time.Now().After(deadline) {
			return ctx.Err()
		}
		time.Sleep(time.Millisecond)
	}
}

// awaitSnapshot waits until the first snapshot is published. The control loop then waits for the
// kernel program (steering.Program.Own).
func (d *Daemon) awaitSnapshot(ctx context.Context) error {
	for deadline := time.Now().Add(readyTimeout); d.services.Load() == nil; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil || time.Now().After(deadline) {
			return errors.New("no snapshot was compiled in time")
		}
	}
	return nil
}

// Assume implements handover.Taker.
func (k *taker) Assume(b []byte) error {
	d := k.d
	k.state = state{}
	k.in.Write(b)
	if err := k.states.Decode(&k.state); err != nil {
		return err
	}
	k.decodedAt = boottime.Nanos()
	if err := d.flows.Table.Fits(k.state.Used); err != nil {
		return err
	}
	return d.workers.Assume(&k.state.Custody)
}

// own takes the flow table, which the running process does not use any more, and starts the
// workers.
func (k *taker) own() error {
	d := k.d
	k.takenAt = boottime.Nanos()
	if err := d.flows.Table.Assume(k.state.Used, flowtable.Time(boottime.Nanos())); err != nil {
		return err
	}
	// Replies to the first new flows come within microseconds.
	err := d.steer.Take(d.configuration(), d.services.Load())
	if err != nil {
		d.log.Warn("replies to new flows may be lost until the kernel program has its settings", "error", err)
	}
	if k.ranAt, err = d.workers.RunNow(d.workersLife, d.fail, handover.DefaultTimes.Assume); err != nil {
		d.log.Warn("packets may wait yet", "error", err)
	}
	k.collect()
	return nil
}

// notHanded is what begins anew in the next process.
var notHanded = []string{"counters of Services, backends, checks and of the flow table's events",
	"path MTUs that were learnt", "tokens of ICMP and connection rates", "connections of metrics and health checks"}

// noteTakeOver logs how the hand-over went, for the status as well.
func (d *Daemon) noteTakeOver(from string, k *taker) {
	since := func(from, to uint64) time.Duration { return time.Duration(to - from) }
	gap := since(k.state.StoppedAt, k.ranAt)
	v := &status.TakeOverView{From: from, At: time.Now().Add(-since(k.state.StoppedAt, boottime.Nanos())),
		GapMicros: gap.Microseconds(), NotHanded: notHanded}
	counts := d.flows.Table.Counts()
	v.Flows = counts.Live[0] + counts.Live[1]
	for i := range k.state.Custody.Workers {
		r := &k.state.Custody.Workers[i].Remains
		v.Packets += uint64(len(r.Hops) + len(r.Parked) + len(r.Fragments))
	}
	d.flows.Recovery.Recovered = int(v.Flows)
	d.takenOver.Store(v)
	d.log.Info("taken over from the running process", "version", from, "gap", gap, "flows", v.Flows, "heldPackets",
		v.Packets, "stopping", since(k.state.StoppedAt, k.state.PausedAt), "sending",
		since(k.state.PausedAt, k.decodedAt), "checking", since(k.decodedAt, k.takenAt), "starting",
		since(k.takenAt, k.ranAt))
	k.state = state{}
}

// afterTake opens the servers, and does what only the owner may. From here on nothing but the loss
// of workers ends this process: nobody else forwards.
func (d *Daemon) afterTake(c *handover.Conn, k *taker) error {
	if err := listenAgain(d.servers.listener, d.giving.listener, d.pulses.listener); err != nil {
		d.log.Warn("probes take this process for the one before", "error", err)
	}
	ended := make(chan struct{})
	if err := d.startServersWhen(d.life, ended); err != nil {
		return err
	}
	d.spawn(func() { // addresses are free when the process before has ended, which may take long
		if !c.AwaitEnd(releaseTime) {
			d.log.Warn("the process before has given everything and does not end: end it, as it may have the "+
				"addresses of metrics and health checks", "it", processName(c.PID))
		}
		c.Close()
		close(ended)
	})
	d.follow(d.giving.predecessors, nil) // of the offer
	d.spawn(func() { d.openTaken(d.life, k.lock) })
	return nil
}

// retryEvery is the pause between two attempts of what nothing can be done without.
const retryEvery = time.Second

// persist does something until it succeeds. It is false if ctx is done before.
func (d *Daemon) persist(ctx context.Context, what string, do func() error) bool {
	for {
		err := do()
		if err == nil {
			return true
		}
		d.log.Error(what+": trying again", "error", err)
		if pause(ctx, retryEvery); ctx.Err() != nil {
			return false
		}
	}
}

// openTaken is openPorts for sockets that work already. It continues the kernel program's rules
// first.
func (d *Daemon) openTaken(ctx context.Context, lock *os.File) {
	d.actAlone(ctx)
	if !d.persist(ctx, "kernel program", func() error { return d.steer.Own(lock) }) {
		d.steer.Resume() // whoever waits for it ends, too
		return
	}
	if !d.persist(ctx, "kernel program settings", d.applySettings) {
		return
	}
	d.beat()
	d.applySources()
	d.setUpTaken(ctx)
	d.objects.ownAddresses(d.configuration())
	select {
	case <-d.loop.Ready():
	case <-ctx.Done():
		return
	}
	d.ports.AttachOver(ctx)
	d.ports.Tune()
	d.prunePins()
	d.spawn(d.adoptFlows)
	d.spawn(func() { d.workers.Follow(ctx) })
	d.served(ctx)
}
