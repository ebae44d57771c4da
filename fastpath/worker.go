package fastpath

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/fragment"
	"sluice.dev/sluice/nat/header"
)

// BatchSize is the most packets judged together: large enough to make the fixed cost of a step, and
// of filling and emptying the pipeline, small.
const BatchSize = 256

// Config has the parts of a Worker. It shares all but the Links with the rest of the process; the
// Links belong to the worker.
type Config struct {
	ID     int
	Memory []byte // the UMEM
	Pool   *Pool  // all frames of the UMEM that no link owns yet
	// Chains are the packets in several frames, shared with the links; nil if there are to be none.
	Chains *Chains

	// Links are what the worker receives from, in any order.
	Links []Link
	// Egress maps an interface index (nexthop.Hop.Link) to the position in Links
	// of the link to transmit on.
	Egress []int
	// Interfaces has the interface index of each of Links. Only StrictReversePath needs it; what it
	// has for the host link is not read.
	Interfaces []int
	// StrictReversePath: a reply must come from the interface and VLAN by which packets to its
	// backend leave.
	StrictReversePath bool
	// Host is the position in Links of the host link, or -1.
	Host int
	// HostMAC are the kernel's end of the host link and ours.
	HostMAC HostMAC

	Flows    *flowtable.Table // shared by Workers workers
	Workers  int
	Services *services.Handle
	Hops     *nexthop.Table
	// Affinity are the pins of clients, shared by all workers; nil if there is no session affinity.
	Affinity *affinity.Table
	// Fragments is shared by all workers.
	Fragments *fragment.Table
	Stats     *stats.Block

	// HostSource are our own addresses on the host link, by family: the source
	// address towards backends that the kernel reaches for us.
	HostSource4, HostSource6 header.Addr

	// HeldPackets bounds the packets that wait for next hops, HeldPerHop those that
	// wait for one.
	HeldPackets, HeldPerHop int
	// HeldFragments bounds the fragments that wait for their first one, for FragmentWait.
	HeldFragments int
	FragmentWait  time.Duration
	// ICMPRate (per second) and ICMPBurst limit this worker's own ICMP errors and RSTs, each kind
	// by itself (Worker.limitOf). TTL is the TTL of packets that it generates.
	ICMPRate, ICMPBurst int
	TTL                 uint8
	// PathMTUFloor is the lowest path MTU that an ICMP error about a flow may announce, in bytes;
	// over IPv6 1280 is, where that is higher.
	PathMTUFloor uint16
	// FramesKept counts frames that a closed link could not give back yet, or is nil.
	FramesKept func() int
	// Seed makes source ports and the hashes of sites unguessable. Zero takes one from the system.
	Seed [32]byte
	// Validate checks both laws after every step and panics where one is broken.
	Validate bool
}

// HostMAC are the two ends of the host link.
type HostMAC struct{ Kernel, User [6]byte }

// Worker forwards the packets of its links. Only the goroutine of its Runner touches it, except Do
// and Stop.
type Worker struct {
	c      Config
	mem    []byte
	memory header.Memory // mem
	pool   *Pool
	chains *Chains
	flows  *flowtable.Handle // shared with the planner
	stats  *stats.Block

	planner decide.Planner

	b      batch
	out    []egressQueue     // by position in Links
	toLink [256]*egressQueue // by nexthop.Hop.Link; nil where there is none
	pieces []piece           // by position in Links
	// suspects counts the links with a piece.
	suspects int
	hops     hopQueue
	parked   parkedQueue
	take     int  // packets that this step takes from each link
	opens    int  // flows that this step may open yet
	opening  bool // parked packets are being judged
	syn      syn  // the packet that is judged, see readSYN
	frags    fragmentQueue
	limit    nat.FairRateLimit // of ICMP errors, but for those with limits of their own
	tooBig   nat.FairRateLimit // of nat.FragmentationNeeded
	expired  nat.FairRateLimit // of nat.TimeExceeded
	resets   nat.FairRateLimit
	pathMTUs *nat.RateLimits   // by site of clients
	siteKey  flowtable.HashKey // of hashes of sites
	draws    draws
	ahead    lookahead
	host     nexthop.Hop

	n         counts
	ticks     flowtable.Ticks // now, as of begin
	swept     flowtable.Time
	due       int            // records of the flow table to sweep, for the time until swept
	published flowtable.Time // the counts
	counted   flowtable.Time // all backends' counters
	entered   uint64         // the generation to publish after the remaining rounds
	rounds    int            // remaining rounds of publishing backends' counters
	tasks     tasks
	wake      wakeup
	stop      atomic.Bool
	next      *Runner // who is to step it after this step, or nil
	paused    bool    // Step does nothing
}

// New checks the configuration and returns a worker that has not started.
func New(c Config) (*Worker, error) {
	switch {
	case c.Pool == nil || len(c.Memory) < header.Window6Bytes:
		return nil, errors.New("fastpath: a worker needs a UMEM and its pool")
	case c.Flows == nil || c.Services == nil || c.Hops == nil || c.Stats == nil || c.Fragments == nil:
		return nil, errors.New("fastpath: a worker needs flows, services, next hops, fragments and a stats block")
	case c.Workers < 1:
		return nil, errors.New("fastpath: Workers must count this worker")
	case c.Host >= len(c.Links):
		return nil, fmt.Errorf("fastpath: host link is link %d of %d", c.Host, len(c.Links))
	}
	for i, l := range c.Egress {
		if l < 0 || l >= len(c.Links) {
			return nil, fmt.Errorf("fastpath: interface %d transmits on link %d of %d", i, l, len(c.Links))
		}
	}
	if c.StrictReversePath && len(c.Interfaces) != len(c.Links) {
		return nil, fmt.Errorf("fastpath: %d links, and the interfaces of %d", len(c.Links), len(c.Interfaces))
	}
	if c.Chains == nil {
		c.Chains = NewChains(c.Pool.Total(), int(c.Pool.frameSize))
	}
	flows, err := c.Flows.Register()
	if err != nil {
		return nil, fmt.Errorf("fastpath: worker %d: %w", c.ID, err)
	}
	flows.MakeRings()
	w := &Worker{
		c: c, mem: c.Memory, memory: header.NewMemory(c.Memory), pool: c.Pool, chains: c.Chains,
		flows: flows, stats: c.Stats,
		planner: decide.Planner{
			Flows: flows, Loads: c.Flows.Loads(), Pins: c.Affinity,
			Host4: c.HostSource4, Host6: c.HostSource6, Routes: new(decide.RouteCache),
		},
		draws:    draws{source: newRandom(c.Seed)},
		limit:    nat.NewFairRateLimit(c.ICMPRate, c.ICMPBurst),
		tooBig:   nat.NewFairRateLimit(c.ICMPRate, c.ICMPBurst),
		expired:  nat.NewFairRateLimit(c.ICMPRate, c.ICMPBurst),
		resets:   nat.NewFairRateLimit(c.ICMPRate, c.ICMPBurst),
		pathMTUs: nat.NewRateLimits(pathMTURate, pathMTUBurst),
		host:     nexthop.Hop{Kind: nexthop.Kernel, Ready: true, DstMAC: c.HostMAC.Kernel, SrcMAC: c.HostMAC.User},
	}
	for i := range w.siteKey {
		w.siteKey[i] = w.draws.source.Uint64()
	}
	w.take = BatchSize
	w.hops = newHopQueue(c.HeldPackets, c.HeldPerHop, [2]uint64{w.draws.source.Uint64(), w.draws.source.Uint64()})
	w.frags = newFragmentQueue(c.HeldFragments, c.FragmentWait)
	w.parked = newParkedQueue(c.Pool.Total())
	w.out, w.pieces = make([]egressQueue, len(c.Links)), make([]piece, len(c.Links))
	for i := range w.out {
		w.out[i].link = i
	}
	for i, link := range c.Egress[:min(len(c.Egress), len(w.toLink))] {
		w.toLink[i] = &w.out[link]
	}
	if err := w.wake.open(); err != nil {
		flows.Close()
		return nil, fmt.Errorf("fastpath: worker %d: eventfd: %w", c.ID, err)
	}
	return w, nil
}

// SetLink replaces the link in a position. It must run on the worker's goroutine (Do). The caller
// owns the old link, whose frames count as missing until it is closed into Pool.
func (w *Worker) SetLink(position int, l Link) (old Link) {
	old = w.c.Links[position]
	w.c.Links[position] = l
	w.Suspect(position, Piece{})
	return old
}

// SetHostMAC sets the addresses of the host link's ends: it may be deleted and created again. It
// must run on the worker's goroutine (Do).
func (w *Worker) SetHostMAC(m HostMAC) { w.host.DstMAC, w.host.SrcMAC = m.Kernel, m.User }

// Pool returns the worker's free frames, for closing a link into. It must be used
// on the worker's goroutine (Do) only.
func (w *Worker) Pool() *Pool { return w.pool }

// Step is one pass of the loop: it forwards the packets that have arrived, and returns how many
// moved. now is CLOCK_BOOTTIME in nanoseconds. Run calls it for ever; tests and replays call it
// themselves.
func (w *Worker) Step(now uint64) int {
	if w.paused {
		return 0
	}
	w.begin(flowtable.Time(now))
	moved := 0
	for i, link := range w.c.Links {
		n := link.Receive(w.b.desc[:w.take])
		if n == 0 {
			continue
		}
		moved += n
		w.count(i, n)
		if w.suspects != 0 {
			w.refute(i, w.b.desc[:n])
		}
		w.received(n)
		w.handleBatch(n) // find or make flows, rewrite, queue, park, drop with a reason
		w.transmit()
	}
	if w.parked.count > 0 {
		moved += w.openParked()
	}
	moved += w.release()
	w.transmit()
	w.reclaim()
	w.expire(moved)
	w.publish(moved)
	return moved
}

// begin opens a step: one clock value, one snapshot and one view for all of it.
func (w *Worker) begin(now flowtable.Time) {
	w.planner.Now, w.ticks, w.opens = now, now.Ticks(), OpensPerStep
	w.hops.mayDisplace = displacedPerStep
	w.flows.Enter(now)
	w.planner.Snap = w.c.Services.Load()
	w.enter(w.c.Hops.View())
	if w.planner.Snap != nil {
		w.stats.Backends.Expect(w.planner.Snap.BackendIndexes())
	}
}

// packetsPerBinding is how many packets a step takes while their flows must be bound by a new view
// of the routes, or to new owners of their frontends, at some 0.6 us each: no more than hold up
// others for 50 us.
const packetsPerBinding = 64

// enter decides by a view how many packets the step takes.
func (w *Worker) enter(view *nexthop.View) {
	binding := decide.BindingOf(w.planner.Snap, view)
	switch {
	case w.planner.Binding != 0 && w.planner.Binding != binding || w.planner.Rebound > groupSize:
		w.take = packetsPerBinding
	case w.take < BatchSize:
		w.take *= 2
	}
	w.planner.View, w.planner.Binding, w.planner.Rebound = view, binding, 0
}

// reclaim takes sent frames back and gives the links empty ones.
func (w *Worker) reclaim() {
	for _, link := range w.c.Links {
		link.Flush()
		link.Complete(w.pool)
		link.Refill(w.pool)
	}
}

// sweepEvery is the time between two calls of Sweep: shorter slices are not worth a call.
const sweepEvery = flowtable.Time(time.Millisecond)

// sweepBusy is how many records a step sweeps at most that got all the packets that it takes: more
// wait.
const sweepBusy = flowtable.SweepRecords / 4

// expire sweeps this worker's share of the flow table that is due by now. A step sweeps no more
// than it may hold up packets for; the steps that follow sweep the rest.
func (w *Worker) expire(moved int) {
	if elapsed := w.planner.Now - w.swept; elapsed >= sweepEvery {
		w.swept = w.planner.Now
		w.due = min(w.due+w.sweepShare(time.Duration(elapsed)), w.sweepShare(math.MaxInt64))
	}
	if w.due > 0 {
		limit := w.due
		if moved >= w.take {
			limit = min(limit, sweepBusy)
		}
		examined, _ := w.flows.Sweep(w.planner.Now, limit)
		w.due -= examined
	}
}

// sweepShare is how many records are this worker's to sweep for a time.
func (w *Worker) sweepShare(elapsed time.Duration) int {
	return (w.c.Flows.SweepQuota(elapsed) + w.c.Workers - 1) / w.c.Workers
}

// Close gives the worker's place in the flow table back. Run and all calls of Do
// and Stop must have ended.
func (w *Worker) Close() {
	w.flows.Close()
	w.wake.close()
}

// Frames returns the UMEM's size and the frames accounted for. Only the worker's
// goroutine, or a test that drives the steps itself, may call it.
func (w *Worker) Frames() (total, free, links, held int) {
	for _, l := range w.c.Links {
		links += l.Frames()
	}
	if w.c.FramesKept != nil {
		links += w.c.FramesKept()
	}
	return w.pool.Total(), w.pool.Free(), links, w.hops.len() + w.frags.len() + w.parked.len() + w.n.heldMore
}
