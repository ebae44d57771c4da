package fastpath

import (
	"sync/atomic"
	"time"

	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/nat/fragment"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/vxlan"
)

// Config has the parts of a Worker. The Links belong to the worker; it shares the other parts with
// the rest of the process.
type Config struct {
	ID     int
	Memory []byte // the UMEM
	Pool   *Pool  // all frames of the UMEM that no link owns yet
	// Chains are the packets in several frames, shared with the links. New makes a table if it is
	// nil.
	Chains *Chains

	// Links are the links that the worker receives from, in any order.
	Links []Link
	// Egress maps an interface index (nexthop.Hop.Link) to the position in Links
	// of the link to transmit on.
	Egress []int
	// Interfaces has the interface index of each of Links. Only StrictReversePath needs it; its
	// entry for the host link is not read.
	Interfaces []int
	// StrictReversePath: a reply must arrive from the interface and VLAN that packets to its
	// backend leave by.
	StrictReversePath bool
	// Host is the position in Links of the host link, or -1.
	Host int
	// HostMAC has the MAC addresses of the host link's ends.
	HostMAC HostMAC

	Flows    *flowtable.Table // shared by Workers workers
	Workers  int
	Services *services.Handle
	Hops     *nexthop.Table
	// Affinity has the pins of clients, shared by all workers; nil if there is no session affinity.
	Affinity *affinity.Table
	// Copies is shared by all workers of a gateway of a group, whose Flows have Group; nil without.
	Copies *copies.Board
	// Fragments is shared by all workers.
	Fragments *fragment.Table
	Stats     *stats.Block

	// HostSource4 and HostSource6 are the gateway's own addresses on the host link: the source
	// address towards backends that are reached through the kernel.
	HostSource4, HostSource6 header.Addr

	// HeldPackets bounds the packets that wait for next hops, HeldPerHop the packets that wait for
	// one hop.
	HeldPackets, HeldPerHop int
	// HeldFragments bounds the fragments that wait, up to FragmentWait, for their first one.
	HeldFragments int
	FragmentWait  time.Duration
	// ICMPRate (per second) and ICMPBurst limit the ICMP errors and RSTs that this worker
	// generates, separately for each kind (rates.of). TTL is the TTL of packets that it
	// generates.
	ICMPRate, ICMPBurst int
	TTL                 uint8
	// PathMTUFloor is the lowest path MTU, in bytes, that an ICMP error about a flow may announce.
	// Over IPv6 it is at least 1280.
	PathMTUFloor uint16
	// FramesKept counts frames that a closed link could not give back yet; it may be nil.
	FramesKept func() int
	// Tunnel is the tunnel to nodes of flows with direct return; VNI 0: there is none.
	Tunnel vxlan.Tunnel
	// Seed makes source ports and the hashes of sites unguessable. Zero: the system's random
	// source.
	Seed [32]byte
	// Validate checks both laws after every step and panics if one is broken.
	Validate bool
}

// HostMAC has the MAC addresses of both ends of the host link: the kernel's and the worker's.
type HostMAC struct{ Kernel, User [6]byte }

// Worker forwards the packets of its links. Only the goroutine of its Runner uses it, except for
// Do, Tell and Stop.
type Worker struct {
	c Config
	umem
	flows   *flowtable.Handle // shared with the planner
	planner decide.Planner
	ticks   flowtable.Ticks // now, as of begin

	// Packets: the batch that is being handled, the queues in which packets wait, the queues of the
	// links.
	b       batch
	ahead   lookahead
	hops    hopQueue
	parked  parkedQueue
	waiting waitingQueue
	unknown unknownConnections // of a gateway of a group
	frags   fragmentQueue
	egress  egress
	host    nexthop.Hop
	tunnels tunnels
	pieces  pieces

	// What the worker may do: the bounds of a step, and of generated packets.
	budget budget
	rates  rates
	draws  draws

	// Counts, and how far they are published.
	n          counts
	stats      *stats.Block
	publishing struct {
		counts     flowtable.Time // when the counts were published
		backends   flowtable.Time // when all backends' counters were published
		generation uint64         // to publish after the remaining rounds
		rounds     int            // remaining rounds of publishing backends' counters
		idle       bool           // the last step moved no packet
	}

	// sweep is this worker's share of the flow table's expiry.
	sweep struct {
		until flowtable.Time
		due   int // records to sweep, for the time up to until
	}
	control control
	// tap has the captures; nil without any.
	tap     *Taps
	samples *dropSamples
}

// control has the requests of other goroutines.
type control struct {
	tasks  tasks
	wake   wakeup
	stop   atomic.Bool
	next   *Runner // the runner that takes the worker over after this step, or nil
	paused bool    // Step does nothing
}

// SetLink replaces the link in a position. It must run on the worker's goroutine (Do). The caller
// owns the old link. The old link's frames count as missing until the link is closed into Pool.
func (w *Worker) SetLink(position int, l Link) (old Link) {
	old = w.c.Links[position]
	w.c.Links[position] = l
	w.pieces.set(position, Piece{})
	return old
}

// SetHostMAC sets the MAC addresses of the host link's ends, which change if the link is deleted
// and created again. It must run on the worker's goroutine (Do).
func (w *Worker) SetHostMAC(m HostMAC) { w.host.DstMAC, w.host.SrcMAC = m.Kernel, m.User }

// SetPiece sets the piece of the link in a position, which arrived on another link of the same
// device; the zero Piece removes it. It must run on the worker's goroutine (Do).
func (w *Worker) SetPiece(position int, p Piece) { w.pieces.set(position, p) }

// Piece returns the stored piece of the link in a position; ok is false if there is none or a
// longer packet has refuted it. Safe for any goroutine.
func (w *Worker) Piece(position int) (p Piece, ok bool) { return w.pieces.at(position) }

// RefutedPieces returns how many pieces of the link in a position longer packets have refuted. Safe
// for any goroutine.
func (w *Worker) RefutedPieces(position int) uint64 { return w.pieces.of[position].refuted.Load() }

// Pool returns the worker's free frames; a closed link returns its frames there. It must be used on
// the worker's goroutine (Do) only.
func (w *Worker) Pool() *Pool { return w.pool }

// Frames returns the UMEM's size in frames, and the frames that are free, in links and held. Only
// the worker's goroutine, or a test that calls Step itself, may call it.
func (w *Worker) Frames() (total, free, links, held int) {
	for _, l := range w.c.Links {
		links += l.Frames()
	}
	if w.c.FramesKept != nil {
		links += w.c.FramesKept()
	}
	return w.pool.Total(), w.pool.Free(), links,
		w.hops.len() + w.frags.len() + w.parked.len() + w.waiting.len() + w.n.heldMore
}

func (w *Worker) originOf(link int) origin { return origin{link, link == w.c.Host} }
