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

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/gateway/handover"
	"sluice.dev/sluice/gateway/steering"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/internal/wake"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/xdpprog"
)

// successor is this process during one request for a hand-over. It implements handover.Taker.
type successor struct {
	d *Daemon
	// stopStandby ends the standby's goroutines, before this process uses its compiler.
	stopStandby func()
	found       devices.Found
	plan        devices.Plan
	program     *steering.Program
	lock        *os.File // on the pins of programs and maps
	state       state
	states      *gob.Decoder // from stateBytes
	stateBytes  bytes.Buffer
	resumeGC    func() // see holdGC
	// Times by CLOCK_BOOTTIME: the state was decoded, the flow table became this process's, and the
	// last worker ran.
	decodedAt, ownedAt, ranAt uint64
}

// requestHandOver asks the running process to hand over, and reports whether it did. If it refuses,
// or this process cannot take over, this process goes on waiting.
func (d *Daemon) requestHandOver(ctx context.Context, stopStandby func()) (done bool, err error) {
	s := &successor{d: d, stopStandby: stopStandby}
	c, from, err := s.request(ctx)
	if err == nil {
		if err = s.begin(c, from); err != nil {
			d.kernel.Resume() // Prepare has paused it, and stop waits for it
		}
		return true, err
	}
	if d.handOver.in(preparing) {
		return false, fmt.Errorf("%w from the process that runs: %w", errNotReceived, err)
	}
	d.handOver.requests.noteFailed(d.log, err, func() error { return s.able(ctx) })
	s.discard()
	return false, nil
}

// request asks once. Without an error the connection is open, and everything is this process's.
func (s *successor) request(ctx context.Context) (c *handover.Conn, from string, err error) {
	u, err := net.DialTimeout("unix", s.d.settings.config().HandOverSocket(), handover.DefaultTimes.Answer)
	if err != nil {
		return nil, "", &handover.RefusedError{Reasons: []string{
			"it has no socket for hand-overs: it is starting, or is of an older version: " + err.Error()}}
	}
	if c, err = handover.NewConn(u.(*net.UnixConn)); err != nil {
		u.Close()
		return nil, "", &handover.RefusedError{Reasons: []string{err.Error()}}
	}
	if from, err = handover.Take(ctx, c, s, status.ThisBuild().String(), handover.DefaultTimes); err != nil {
		c.Close()
	}
	return c, from, err
}

// able returns why this process could not start after the end of the running one, as far as it can
// be known before that.
func (s *successor) able(ctx context.Context) error {
	if s.program != nil {
		return nil
	}
	_, _, err := s.Facts()
	if err == nil {
		err = s.Lay(ctx)
	}
	var differs *handover.RefusedError
	if errors.As(err, &differs) {
		return nil
	}
	return err
}

// Facts implements handover.Taker.
func (s *successor) Facts() (list []handover.Fact, id string, err error) {
	c := s.d.settings.config()
	if s.found, err = devices.Find(c); err == nil {
		s.plan, err = devices.NewPlan(s.found.Devices, c)
	}
	if err != nil {
		return nil, "", err
	}
	return facts(c, s.found.Frames.Size, &s.plan, flows.Layout(c)), identity(), nil
}

// Lay implements handover.Taker: it loads the programs, because the verifier takes most of the time
// of a start, and checks the other needs of a start. It mounts nothing: without a BPF file system
// there are no maps to take over.
func (s *successor) Lay(context.Context) (err error) {
	d, c := s.d, s.d.settings.config()
	if err := d.servers.readGuard(&c.Metrics, d.log); err != nil {
		return err
	}
	if err := xdpprog.CheckBPFFS(c.BPFFS); err != nil {
		return err
	}
	for i := range s.found.Devices {
		dev := &s.found.Devices[i]
		if err := steering.Replaceable(c, dev.Index, dev.Name); err != nil {
			return err
		}
	}
	mount, err := steering.FindMount(c.BPFFS, c.StateDir)
	if err != nil {
		return err
	}
	s.program, err = steering.Prepare(c, d.log)
	if errors.Is(err, xdpprog.ErrMisfit) { // a start replaces the maps
		return &handover.RefusedError{Reasons: []string{err.Error()}}
	}
	if err == nil {
		d.kernel.mount = mount
	}
	return err
}

// discard undoes Lay.
func (s *successor) discard() {
	if s.program != nil {
		_ = s.program.Discard()
	}
	s.program, s.d.kernel.mount = nil, nil
}

// Prepare implements handover.Taker. It follows the steps of start, with the files of the offer
// instead of new ones.
func (s *successor) Prepare(ctx context.Context, b []byte, files []int) error {
	d := s.d
	d.handOver.enter(preparing)
	s.stopStandby()
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
	d.settings.reload()
	if err := d.seed.draw(); err != nil {
		return err
	}
	if err := d.readMembers(ctx); err != nil {
		return err
	}
	d.kernel.Program = s.program
	d.handOver.receive(&o)
	if o.HostLink {
		d.host.lockFD = files[fileHostLink]
	}
	s.lock = os.NewFile(uintptr(files[filePrograms]), "lock")
	if err := d.receiveListeners(files); err != nil {
		return err
	}
	memory, sockets, err := receiveMemory(o.Shapes, files[first:])
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error {
			return d.flows.receive(d.settings.config(), d.log, &d.services, files[fileFlows], files[filePins])
		},
		d.makeHostLink,
		func() error { return d.makeDatapath(memory) },
		func() error { return d.ports.Adopt(d.life.ctx, sockets) },
		d.startMirror,
		func() error { return d.resolve(d.life.ctx, o.Hops) },
		d.confine, d.startControl,
		func() error { return d.awaitSnapshot(d.life.ctx) },
		func() error { return d.workers.Ready(d.life.workers) },
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := step(); err != nil {
			return err
		}
	}
	s.states = gob.NewDecoder(&s.stateBytes)
	s.stateBytes.Write(o.Types)
	if err := s.states.Decode(&s.state); err != nil {
		return err
	}
	s.resumeGC = holdGC()
	return nil
}

// receiveListeners makes the listeners of the offer's files.
func (d *Daemon) receiveListeners(files []int) error {
	var errs [3]error
	d.servers.listener, errs[0] = fileListener(files[fileStatus])
	d.handOver.socket, errs[1] = fileListener(files[fileHandOver])
	d.pulse.listener, errs[2] = fileListener(files[filePulse])
	return errors.Join(errs[:]...)
}

// resolveFor bounds the wait for next hops. As after any start, packets to a next hop that is not
// resolved by then are held.
const resolveFor = 300 * time.Millisecond

// resolve resolves the next hops that the running process has resolved. The kernel has them, too.
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
func (s *successor) Assume(b []byte) error {
	d := s.d
	s.state = state{}
	s.stateBytes.Write(b)
	if err := s.states.Decode(&s.state); err != nil {
		return err
	}
	s.decodedAt = boottime.Nanos()
	if err := d.flows.file.Table.Fits(s.state.Used); err != nil {
		return err
	}
	return d.workers.Assume(&s.state.Custody)
}

// begin starts this process as the owner of everything that the predecessor had.
func (s *successor) begin(c *handover.Conn, from string) error {
	d := s.d
	if err := s.run(); err != nil { // first of all, because packets wait
		return err
	}
	if err := handover.Running(c, handover.DefaultTimes); err != nil {
		d.log.Debug("the previous process has ended already", "error", err)
	}
	d.handOver.enter(owning)
	d.flows.log.run()
	s.noteTakeOver(from)
	return s.serve(c)
}

// run takes the flow table, which the predecessor does not use any more, and runs the workers.
func (s *successor) run() error {
	d := s.d
	s.ownedAt = boottime.Nanos()
	if err := d.flows.file.Table.Assume(s.state.Used, flowtable.Time(boottime.Nanos())); err != nil {
		return err
	}
	d.flows.log.own()
	if d.group != nil {
		d.group.Recover()
	}
	// Replies to the first new flows arrive within microseconds.
	err := d.kernel.Take(d.settings.config(), d.services.Load())
	if err != nil {
		d.log.Warn("replies to new flows may be lost until the kernel program has its settings", "error", err)
	}
	if s.ranAt, err = d.workers.RunNow(d.life.workers, d.life.fail, handover.DefaultTimes.Assume); err != nil {
		d.log.Warn("packets may have to wait longer", "error", err)
	}
	s.resumeGC()
	return nil
}

// notHanded lists the state that the successor starts without.
var notHanded = []string{"counters of Services, backends, checks and of the flow table's events",
	"path MTUs that were learnt", "tokens of ICMP and connection rates", "connections of metrics and health checks"}

// noteTakeOver describes the hand-over in the log and the status.
func (s *successor) noteTakeOver(from string) {
	d := s.d
	since := func(from, to uint64) time.Duration { return time.Duration(to - from) }
	gap := since(s.state.StoppedAt, s.ranAt)
	v := &status.TakeOverView{From: from, At: boottime.Wall(s.state.StoppedAt),
		GapMicros: gap.Microseconds(), NotHanded: notHanded}
	counts := d.flows.file.Table.Counts()
	v.Flows = counts.Live[0] + counts.Live[1]
	for i := range s.state.Custody.Workers {
		r := &s.state.Custody.Workers[i].Remains
		v.Packets += uint64(len(r.Hops) + len(r.Parked) + len(r.Fragments))
	}
	d.flows.file.Recovery.Recovered = int(v.Flows)
	d.handOver.requests.view.Store(v)
	d.log.Info("taken over from the running process", "version", from, "gap", gap, "flows", v.Flows, "heldPackets",
		v.Packets, "stopping", since(s.state.StoppedAt, s.state.PausedAt), "sending",
		since(s.state.PausedAt, s.decodedAt), "checking", since(s.decodedAt, s.ownedAt), "starting",
		since(s.ownedAt, s.ranAt))
	s.state = state{}
}

// serve starts the servers and the tasks of the owner. From here on only the loss of workers may
// end this process, because no other process forwards.
func (s *successor) serve(c *handover.Conn) error {
	d := s.d
	if err := listenAgain(d.servers.listener, d.handOver.socket, d.pulse.listener); err != nil {
		d.log.Warn("probes see the process id of the previous process", "error", err)
	}
	ended := make(chan struct{})
	if err := d.startServersWhen(ended); err != nil {
		return err
	}
	d.life.spawn(func() { // the addresses are free when the predecessor has ended, which may take long
		if !c.AwaitEnd(releaseTime) {
			d.log.Warn("the previous process has handed over and does not end: end it, because it may use the "+
				"addresses of metrics and health checks", "process", processName(c.PID))
		}
		c.Close()
		close(ended)
		if err := d.settings.journal.ReadLate(); err != nil {
			d.log.Warn("the last events of the previous process are lost", "error", err)
		}
	})
	d.handOver.follow(d.settings.atStart.StateDir, d.handOver.predecessors, nil)
	d.life.spawn(func() { s.open(d.life.ctx) })
	return nil
}

// persist runs a step until it succeeds. It is false if ctx ends before that.
func (d *Daemon) persist(ctx context.Context, name string, step func() error) bool {
	for {
		err := step()
		if err == nil {
			return true
		}
		d.log.Error(name+": trying again", "error", err)
		if !wake.After(ctx, retryEvery) {
			return false
		}
	}
}

// open is openPorts for sockets that are in use already. It first makes this process the owner of
// the kernel program's rules.
func (s *successor) open(ctx context.Context) {
	d := s.d
	d.actAlone(ctx)
	if !d.persist(ctx, "kernel program", func() error { return d.kernel.Own(s.lock) }) {
		d.kernel.Resume() // the goroutines that wait for the program end, too
		return
	}
	if !d.persist(ctx, "kernel program settings", d.host.applySettings) {
		return
	}
	d.beat()
	d.host.applySources()
	d.host.setUpReceived(ctx)
	d.inputs.own(d.settings.config())
	d.ownJournal()
	select {
	case <-d.loop.Ready():
	case <-ctx.Done():
		return
	}
	d.runGroup(ctx)
	d.ports.AttachOver(ctx)
	d.ports.Tune()
	d.flows.prunePins(d.log, &d.services)
	d.life.spawn(func() { d.flows.adopt(d.log) })
	d.life.spawn(func() { d.workers.Follow(ctx) })
	d.serveOpen(ctx)
}

// processName names a process by the number that the kernel has for it here (SO_PEERCRED).
func processName(pid int) string {
	if pid == 0 {
		return "a process of another container"
	}
	return fmt.Sprintf("process %d", pid)
}
