package pipeline

import (
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/memlink"
)

// stepFeed is the worker's link. A Runner calls Receive once in each step. There the feed reads the
// clocks, makes the next packets, and reads the clocks again: the time between two calls is a step,
// including the Runner's own work.
//
//	Receive ── step ── Receive ── step ── Receive
//	  feed              feed                feed: not counted
//
// The stream has three parts, which take turns: full batches, as of a saturated worker; small
// batches; and none, so that the worker sleeps. In every other interval of floorEvery the feed
// keeps the thread and runs an empty loop, the floor, whose steps are measured in the same way.
//
// Only the worker's goroutine calls its methods while a Runner runs.
type stepFeed struct {
	*memlink.Link
	g       *gate
	load    *stepLoad
	rnd     *rand.Rand
	awake   int // an eventfd that is always readable: every sleep ends at once
	running bool
	failure error

	m        stepMeasurement
	began    time.Time
	floorEnd time.Time
	last     stepClock
	skip     bool // the current step is not counted

	part, left int       // the part of the stream, and its remaining steps
	idleUntil  time.Time // the end of the part without packets
	next       int       // index of the next flow of the stream
	stranger   strangers
	strangers  int // number of strangers in the next batches
	phase      time.Time
	opened     int // state of the load that changes the stream
	paused     bool
}

const (
	fullBatch  = fastpath.BatchSize
	smallBatch = 32
	fullSteps  = 2000
	smallSteps = 500
	idleFor    = 10 * time.Millisecond
	// floorEvery is the length of an interval with the worker, and of one with the empty loop.
	floorEvery = 5 * time.Millisecond
	// floorStep is the duration of a step of the empty loop: that of a small batch.
	floorStep = 3 * time.Microsecond
)

func (f *stepFeed) over(nic *memlink.Link) fastpath.Link {
	f.Link = nic
	return f
}

func (f *stepFeed) begin(cpu int) (err error) {
	if f.awake, err = unix.Eventfd(1, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	f.m = newStepMeasurement()
	f.running, f.skip, f.failure, f.part, f.left = true, true, nil, 0, fullSteps
	f.began = time.Now()
	f.phase, f.floorEnd, f.opened, f.paused = f.began, f.began, 0, false
	return nil
}

// end must be called after the last Runner has stopped.
func (f *stepFeed) end() {
	f.running = false
	unix.Close(f.awake)
	f.Loop()
}

// parking is a runner that never runs.
func (f *stepFeed) parking() *fastpath.Runner {
	r, err := fastpath.NewRunner(fastpath.RunConfig{CPU: -1})
	if err != nil {
		f.failure = err
		return nil
	}
	r.Close()
	return r
}

// FD implements fastpath.Link.
func (f *stepFeed) FD() int {
	if f.running {
		return f.awake
	}
	return -1
}

// Receive implements fastpath.Link.
func (f *stepFeed) Receive(batch []fastpath.Desc) int {
	if !f.running {
		return f.Link.Receive(batch)
	}
	now := readStepClock()
	counted := now.wall.Sub(f.began) > settleSteps
	if counted && !f.skip {
		f.m.worker.add(&f.last, &now)
	}
	f.skip = false
	f.Loop()
	if f.load.change != nil {
		f.load.change(f, now.wall)
	}
	f.feed(now.wall)
	if now.wall.After(f.floorEnd) {
		f.floor(counted)
	}
	n := f.Link.Receive(batch)
	f.last = readStepClock()
	return n
}

// feed injects the packets of the next step.
func (f *stepFeed) feed(now time.Time) {
	size := 0
	switch f.part {
	case 0:
		size = fullBatch
	case 1:
		size = smallBatch
	case 2:
		if now.After(f.idleUntil) {
			f.part, f.left = 0, fullSteps
		}
	}
	if f.part != 2 {
		if f.left--; f.left == 0 {
			f.part, f.left = f.part+1, smallSteps
			f.idleUntil = now.Add(idleFor)
		}
	}
	size = min(size, fullBatch-f.strangers)
	var b [128]byte
	for range size {
		// In order, so that the lists of all pages of counters become full at the same time.
		fl, k := &f.g.w.flows[f.next], fromClient
		if f.next++; f.next == len(f.g.w.flows) {
			f.next = 0
		}
		if f.rnd.Uint64()&1 == 0 {
			k = fromBackend
		}
		f.inject(b[:f.g.w.frame(&b, fl, k, uint32(f.next))])
	}
	for range f.strangers {
		fl := f.stranger.flow()
		f.inject(b[:f.g.w.frame(&b, &fl, opening, uint32(f.stranger.next))])
	}
	f.strangers = 0
}

// inject gives the link a packet if it has room. A stream faster than the worker loses packets, as
// at a NIC.
func (f *stepFeed) inject(frame []byte) { _ = f.Inject(frame) }

// floor runs the empty loop for as long as the worker ran.
func (f *stepFeed) floor(counted bool) {
	began := time.Now()
	for last := readStepClock(); last.wall.Sub(began) < floorEvery; {
		for from := time.Now(); time.Since(from) < floorStep; {
		}
		now := readStepClock()
		if counted {
			f.m.floor.add(&last, &now)
		}
		last = readStepClock()
	}
	f.floorEnd = time.Now().Add(floorEvery)
}

const (
	expiring    = 200_000 // flows that expire together
	expiryWait  = 1600 * time.Millisecond
	expirySweep = 1500 * time.Millisecond
)

// expire opens many flows that live for a second, and then stops the worker for longer, like a
// stopped process or a paused machine: then all flows are expired and the sweep is late.
func (f *stepFeed) expire(now time.Time) {
	switch f.stranger.proto = header.ProtoUDP; {
	case f.opened < expiring:
		f.part, f.strangers = 1, fastpath.OpensPerStep
		f.left, f.opened = max(f.left, 2), f.opened+f.strangers
		f.phase = now
		return
	case !f.paused:
		time.Sleep(expiryWait)
		f.paused, f.phase = true, time.Now()
	case now.Sub(f.phase) > expirySweep:
		f.opened, f.paused = 0, false
	}
}

const (
	burstEvery = 5 * time.Millisecond
	burstSteps = 16
)

// burst adds SYNs of unknown clients to the next steps: as many as fit into a batch beside a small
// batch of known flows, or half of a full batch. The worker parks the rest.
func (f *stepFeed) burst(now time.Time) {
	f.stranger.proto = header.ProtoTCP
	if now.Sub(f.phase) >= burstEvery {
		f.phase, f.opened = now, burstSteps
	}
	if f.opened == 0 {
		return
	}
	f.opened--
	switch f.part {
	case 0:
		f.strangers = fullBatch / 2
	case 1:
		f.strangers = fullBatch - smallBatch - 1
	}
}
