package flowtable

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"sync/atomic"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// MaxHandles is the maximum number of participants of a table at once: 256 workers, and readers. A
// place that was never registered costs only 576 bytes of heap.
const MaxHandles = 256 + 8

// ErrHandles means that MaxHandles handles are registered.
var ErrHandles = fmt.Errorf("flowtable: %d handles are registered", MaxHandles)

// offline is the seen word of a participant that holds no refs.
const offline = math.MaxUint64

// participant is the part of a handle that other handles read; only its owner writes it. Counters
// are signed differences, and only their sum over all participants is meaningful: one participant
// may count a flow's start, and another its end.
type participant struct {
	// seen is the epoch at the last Enter. The owner stores it before it loads anything of the
	// table; a handle that wants to reuse a record loads it.
	seen atomic.Uint64
	_    [56]byte
	// live[family][state]; state None counts all flows. published is the part of live that is
	// included in Table.published; only the owner reads it.
	live      [2][16]atomic.Int32
	published [2][16]int32
	// rings[family][number]: the owner stores a ring when it first needs it.
	rings [2][numRings]atomic.Pointer[ring]
	// changes: Register stores it, in a table of a group.
	changes atomic.Pointer[changes]
	_       [(256 - 2*numRings*8 - 8) % 64]byte
	tally
}

// numRefusals is the number of Status values that refuse a flow.
const numRefusals = 3

// tally counts events: these counters never decrease.
type tally struct {
	created [2]atomic.Uint64
	shed    [NumSheds]atomic.Uint64
	refused [numRefusals]atomic.Uint64
	// portsTaken counts source ports that a new flow took from a live one: [0] UDP, [1] TCP and
	// SCTP.
	portsTaken [restingTables]atomic.Uint64
	_          [8 * (16 - 2 - NumSheds - numRefusals - restingTables)]byte
}

// Handle is one participant's access to the table: a worker's or a reader's. It must not be used by
// two goroutines at once. Between Enter and the next Enter or Leave it is online: every Ref and
// *Flow it got stays valid, because no dead record is reused until all online handles have called
// Enter again.
type Handle struct {
	t      *Table
	p      *participant
	secret *HashKey
	hidden hiddenKey
	four   []record4 // the table's, to save a load
	six    []record6
	steady *conn.Steady
	id     int
	online bool
	now    Time // of the last Enter

	local   [2]magazines
	limbo   limbo
	exposed bool // the pending flow has claimed a slot: others may read it

	// The sums of the other participants' published live counters, as of the first Create after an
	// Enter.
	others      [2][16]int32
	othersStale bool
	unpublished bool // live has changed

	grace gracePass

	evictor        evictor
	holders        [maxHolders]holder // of portSearch
	probed         int                // ports, by the last Create
	rings          [2][numRings]*ring // those of p
	pushed         bool               // to a ring, since the last Enter or Leave
	changes        *changes           // that of p
	recalls        *recalls           // nil without Config.Group
	updating       bool               // UpdateCopy changes a copy
	endings        endings
	log            *logRing  // nil: no flow is recorded
	accounts       *accounts // nil: no packet is counted
	fetches        fetches
	unacknowledged unacknowledged
	waits          *waits // the table's; nil: no wait is measured
	nextTimed      Time   // when the next TCP connection may be timed
	observed       Observed
}

// Register adds a participant.
func (t *Table) Register() (*Handle, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.handles {
		if t.handles[i] != nil {
			continue
		}
		h := &Handle{
			t: t, p: &t.participants[i], secret: &t.secret, id: i,
			four: t.arenas[0].four, six: t.arenas[1].six, steady: &t.steady,
		}
		h.evictor.random = t.secret[0] ^ uint64(i+1)*0x9e3779b97f4a7c15 | 1
		for f := range h.rings {
			for k := range h.rings[f] {
				h.rings[f][k] = h.p.rings[f][k].Load() // the previous owner's
			}
		}
		if h.changes = h.p.changes.Load(); h.changes == nil && t.Grouped() {
			h.changes = new(changes)
			h.p.changes.Store(h.changes)
		}
		if t.Grouped() {
			h.recalls = new(recalls)
		}
		h.p.seen.Store(offline)
		if h.log = t.log.ring(i); h.log != nil && t.log.traffic {
			h.accounts = &t.log.accounts
		}
		t.handles[i] = h
		if n := int32(i + 1); n > t.watermark.Load() {
			t.watermark.Store(n)
		}
		return h, nil
	}
	return nil, ErrHandles
}

// Close unregisters the handle, and returns the records it kept for itself to the shared lists.
func (h *Handle) Close() {
	h.Leave()
	h.abandonAll()
	for f := range h.local {
		h.local[f].flush(&h.t.arenas[f], h.t)
	}
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	h.t.handles[h.id] = nil // the counters stay: the next owner of the place continues them
}

// Enter drops all refs of the handle and takes it online: call it once per batch. It also
// reclaims a bounded number of dead records.
func (h *Handle) Enter(now Time) {
	t := h.t
	h.limbo.stamp(t)
	h.publish()
	h.p.seen.Store(t.epoch.Load())
	h.online, h.now = true, now
	h.othersStale = true
	if h.pushed {
		h.publishRings()
	}
	h.Publish()
	h.reclaim()
}

// Leave takes the handle offline until the next Enter: it holds no refs. A handle that
// is online and does not Enter keeps all dead records of the table from being reused.
func (h *Handle) Leave() {
	h.limbo.stamp(h.t)
	h.publish()
	if h.pushed {
		h.publishRings()
	}
	h.Publish()
	h.abandon()
	h.online = false
	h.p.seen.Store(offline)
}

// gracePass is a walk over all participants, a part of it in each Enter, that finds an epoch which
// all online participants have seen.
type gracePass struct {
	next  int32  // participant
	start uint64 // the epoch when the pass began
	low   uint64 // the lowest epoch seen by the participants so far
	safe  uint64 // the result of the last pass
}

// graceStride is the number of participants that one Enter reads: each is a cache line that its
// owner writes in each of its own Enters.
const graceStride = 16

// safe returns an epoch that all online participants have seen: batches that are stamped with it or
// with an earlier one are free. A pass that began at epoch e finds at most e. Such a batch had left
// the index before the pass, so a participant that was offline when the pass read it finds none of
// the batch's records, regardless of the epoch that it stores when it enters.
func (h *Handle) safe() uint64 {
	g, n := &h.grace, h.t.watermark.Load()
	if g.next == 0 {
		g.start, g.low = h.t.epoch.Load(), offline
	}
	end := min(g.next+graceStride, n)
	for i := range h.t.participants[g.next:end] {
		g.low = min(g.low, h.t.participants[int(g.next)+i].seen.Load())
	}
	if g.next = end; end == n {
		g.next, g.safe = 0, min(g.low, g.start)
	}
	return g.safe
}

func family(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

func (h *Handle) arena(v6 bool) *arena { return &h.t.arenas[family(v6)] }

// Flow returns a flow's record. The ref must be from this handle's current batch and not zero.
func (h *Handle) Flow(r Ref) *Flow { return h.t.flow(r) }

func (t *Table) flow(r Ref) *Flow {
	if r&refV6 == 0 {
		return &t.arenas[0].four[r].Flow
	}
	return &t.arenas[1].six[r&^refV6].Flow
}

// Lookup returns a packet's flow, and the side of the flow on which the packet arrived. It returns
// 0 if there is no flow or if it has expired.
func (h *Handle) Lookup(hash uint64, t *header.Tuple, now Time) (Ref, Side) {
	a := h.arena(t.V6)
	var k key
	k.from(t)
	tag, b := uint8(hash), a.home(hash)
	for members := a.buckets[b].ctl.Load() & memberMask; members != 0; b, members = b+1, members>>bucketSlots {
		bk := &a.buckets[b]
		for m := bk.candidates(tag) & members & slotMask; m != 0; m &= m - 1 {
			slot := bk.slots[bits.TrailingZeros64(m)].Load()
			if slot == 0 {
				continue
			}
			// Load meta before the key: a live flow's ports are final.
			i := slotIndex(slot)
			md := a.flow(i).load()
			if !md.Live() || md.Proto() != k.proto || !a.same(slot, &k) {
				continue
			}
			if h.t.expired(a, i, md, now.Ticks()) {
				return 0, 0
			}
			return a.ref(i), slotSideOf(slot)
		}
	}
	return 0, 0
}

// tuple returns one of a flow's two tuples.
func (a *arena) tuple(index uint32, side Side, out *header.Tuple) {
	k := a.keyOf(index, side)
	k.to(out, a.v6)
}

// Outgoing sets out to the tuple that a packet which arrived on side from leaves
// with: the reverse of the other side's tuple.
func (h *Handle) Outgoing(r Ref, from Side, out *header.Tuple) {
	var t header.Tuple
	h.arena(r&refV6 != 0).tuple(r.index(), from^1, &t)
	*out = t.Reverse()
}

// Hash returns the keyed hash of a tuple, for Lookup.
func (h *Handle) Hash(t *header.Tuple) uint64 {
	if t.V6 {
		var k key
		k.from(t)
		return h.secret.hash(true, &k)
	}
	addr := uint64(binary.BigEndian.Uint32(t.Src[12:]))<<32 | uint64(binary.BigEndian.Uint32(t.Dst[12:]))
	return h.secret.hash4(addr, uint32(t.SrcPort)<<16|uint32(t.DstPort), t.Proto)
}

// fetches has the addresses of lines that are prefetched together.
type fetches [3]uint64
