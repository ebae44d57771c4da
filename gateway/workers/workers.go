// Package workers makes the workers of a plan (devices.Plan), each with its own UMEM and CPU, runs
// them, and reports stalled ones. The daemon owns the parts that they share, such as the flow
// table. Their links are empty until package ports sets sockets there.
package workers

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/fastpath/thread"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/host/hostlink"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/placement"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/nat/fragment"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/vxlan"
	"sluice.dev/sluice/serve/status"
)

// Config has the parts that workers are made of.
type Config struct {
	Settings  *config.Configuration // at the start of the process
	Log       *slog.Logger
	Plan      devices.Plan
	FrameSize int
	Flows     *flowtable.Table
	Affinity  *affinity.Table
	Copies    *copies.Board // nil without a group
	Services  *services.Handle
	Hops      *nexthop.Table
	Host      *hostlink.HostLink // nil if there is none
	// Machine decides the workers' placement; workers are not pinned if it has no CPUs.
	Machine placement.Machine
	// Arrivals counts the packets that have arrived, by CPU. If it is nil, workers do not move.
	Arrivals func() ([]uint64, error)
	// Taken are the UMEMs of another process, by worker, that these workers take over; nil: make
	// new ones.
	Taken []*xsk.UMEM
	// Beats has the heartbeat of Follow; it may be nil.
	Beats *heartbeat.Set
}

// Group is the workers of a gateway.
type Group struct {
	c          Config
	fragments  *fragment.Table
	times      *stats.Times
	workers    []*worker
	started    bool
	startedAt  uint64 // CLOCK_BOOTTIME
	done       sync.WaitGroup
	placed     atomic.Pointer[placement.Placement]
	places     atomic.Pointer[[]status.PlaceView]
	moves      bool     // workers move to CPUs where no packets arrive
	runners    *runners // nil until they run
	precedence precedence
}

// worker is a fastpath.Worker with the parts that no other worker uses.
type worker struct {
	*fastpath.Worker
	umem  *xsk.UMEM
	block *stats.Block
}

// New makes workers without links, which do nothing yet.
func New(c Config) (*Group, error) {
	fragments, err := newFragments(c.Settings.Tuning.Fragments)
	if err != nil {
		return nil, err
	}
	g := &Group{c: c, fragments: fragments, times: new(stats.Times)}
	c.Flows.ShareRings(c.Plan.Workers)
	p, moves := c.place()
	g.placed.Store(&p)
	g.moves = moves
	g.precedence.open(c.Settings)
	for id := range c.Plan.Workers {
		if err := g.add(id); err != nil {
			return nil, errors.Join(err, g.Close())
		}
	}
	return g, nil
}

// RealTime makes the calling thread a real-time thread (thread.RealTime), unless the configuration
// or the kernel forbids it.
func (g *Group) RealTime() error {
	if why := g.precedence.noRealTime; why != "" {
		return errors.New(why)
	}
	return thread.RealTime()
}

func newFragments(contexts int) (*fragment.Table, error) {
	var secret [16]byte
	rand.Read(secret[:]) // never fails (crypto/rand)
	return fragment.New(make([]atomic.Uint64, fragment.Words(contexts)),
		[2]uint64{binary.LittleEndian.Uint64(secret[:]), binary.LittleEndian.Uint64(secret[8:])})
}

func (g *Group) add(id int) error {
	c, plan := g.c.Settings, &g.c.Plan
	links := plan.Links(id)
	frames := links * c.Tuning.FramesPerQueue()
	var umem *xsk.UMEM
	var err error
	if g.c.Taken == nil {
		umem, err = xsk.NewUMEM(xsk.UMEMConfig{Frames: frames, FrameSize: g.c.FrameSize, HugePages: true})
	} else if umem = g.c.Taken[id]; umem.Frames() != frames || umem.FrameSize() != g.c.FrameSize {
		err = fmt.Errorf("worker %d: the other process has %d frames of %d bytes, this one has %d of %d", id,
			umem.Frames(), umem.FrameSize(), frames, g.c.FrameSize)
	}
	if err != nil {
		return err
	}
	w := &worker{umem: umem, block: &stats.Block{Times: g.times}}
	g.workers = append(g.workers, w)
	fc := fastpath.Config{
		ID: id, Memory: umem.Bytes(), Pool: fastpath.NewPool(umem.Frames(), umem.FrameSize()), Chains: umem.Chains(),
		Links: make([]fastpath.Link, links), Host: -1,
		Flows: g.c.Flows, Affinity: g.c.Affinity, Copies: g.c.Copies, Workers: plan.Workers, Services: g.c.Services,
		Hops:      g.c.Hops,
		Fragments: g.fragments, Stats: w.block,
		HeldPackets: config.HeldPackets, HeldPerHop: config.HeldPerHop,
		HeldFragments: c.Tuning.HeldFragments(), FragmentWait: config.FragmentWait,
		ICMPRate: share(c.Tuning.ICMPRate, plan.Workers), ICMPBurst: share(c.Tuning.ICMPBurst(), plan.Workers),
		TTL: config.OwnTTL, PathMTUFloor: uint16(c.Tuning.PathMTUFloor),
		FramesKept: umem.Kept, Tunnel: vxlan.Tunnel{VNI: uint32(c.DirectReturn.VNI), Port: uint16(c.DirectReturn.Port)},
		Validate: os.Getenv("SLUICE_VALIDATE") == "1",
	}
	for i := range fc.Links {
		fc.Links[i] = fastpath.NoLink{}
	}
	for port := range c.Interfaces {
		fc.Egress = append(fc.Egress, plan.First(port, id))
	}
	fc.StrictReversePath, fc.Interfaces = c.Proxy.StrictReversePath, plan.Ports(id)
	if host := g.c.Host; host != nil {
		fc.Host = plan.First(len(c.Interfaces), id)
		fc.HostMAC = fastpath.HostMAC{Kernel: host.KernelMAC, User: host.MAC}
		if host.Addr4.IsValid() {
			fc.HostSource4 = header.AddrFrom(host.Addr4)
		}
		if host.Addr6.IsValid() {
			fc.HostSource6 = header.AddrFrom(host.Addr6)
		}
	}
	w.Worker, err = fastpath.New(fc)
	return err
}

// share divides a limit of the process among its workers. The share of a limit that is not zero is
// not zero either.
func share(limit, workers int) int {
	if limit == 0 {
		return 0
	}
	return max(1, limit/workers)
}

// Close frees the workers' memory. They must have ended, and their sockets must be closed.
func (g *Group) Close() error {
	errs := []error{g.precedence.close()}
	for _, w := range g.workers {
		if w.Worker != nil {
			w.Worker.Close()
		}
		errs = append(errs, w.umem.Close())
	}
	return errors.Join(errs...)
}

// Len returns the number of workers.
func (g *Group) Len() int { return len(g.workers) }

// UMEM returns the packet memory of a worker.
func (g *Group) UMEM(id int) *xsk.UMEM { return g.workers[id].umem }

// Piece returns the piece of a packet that arrived at a worker's link (fastpath.Worker.Piece).
func (g *Group) Piece(id, position int) (fastpath.Piece, bool) { return g.workers[id].Piece(position) }

// RefutedPieces counts the pieces of a worker's link that were refuted.
func (g *Group) RefutedPieces(id, position int) uint64 { return g.workers[id].RefutedPieces(position) }

// SetPiece gives a worker's link a piece that arrived at another one (fastpath.Worker.SetPiece).
func (g *Group) SetPiece(ctx context.Context, id, position int, p fastpath.Piece) error {
	return g.Do(ctx, id, func(w *fastpath.Worker) { w.SetPiece(position, p) })
}

// RefillTimes replaces the times that workers have taken from their stock.
func (g *Group) RefillTimes() { g.times.Refill() }

// Blocks returns the workers' counters.
func (g *Group) Blocks() []*stats.Block {
	blocks := make([]*stats.Block, len(g.workers))
	for i, w := range g.workers {
		blocks[i] = w.block
	}
	return blocks
}
