package flowtable

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// ages makes n half-open flows, one each tenth of a second, and returns their tuples.
func ages(t *testing.T, h *Handle, first, n uint32) (clients []header.Tuple) {
	for i := range n {
		now := bootTime + Time(i)*second/10
		h.Enter(now)
		f := newFlow(header.ProtoTCP, false, first+i)
		h.mustCreate(t, now, f)
		clients = append(clients, f.Client)
	}
	return clients
}

// TestOldestHalfOpenFirst: at the cap half-open flows end in the order of their age, regardless of
// the handle that made them and the handle that needs the room. Flows that become established
// meanwhile stay.
func TestOldestHalfOpenFirst(t *testing.T) {
	for _, taker := range []string{"the handle that made them", "another"} {
		const flows = 40
		tb, h := testTableOf(t, Config{IPv4Flows: 100_000, HalfOpen: flows / 2, Timeouts: DefaultTimeouts()})
		all := ages(t, h, 0, flows/2)
		now := bootTime + flows/2*second/10
		for i := 0; i < flows/2; i += 3 {
			r, _ := h.lookup(&all[i], now)
			h.establish(r, now)
		}
		h.Enter(now)
		by := h
		if taker == "another" {
			var err error
			if by, err = tb.Register(); err != nil {
				t.Fatal(err)
			}
		}
		by.Enter(now)
		for n := range uint32((flows/2 + 2) / 3) { // up to the cap
			by.mustCreate(t, now, newFlow(header.ProtoTCP, false, 1000+n))
		}
		for i := range all {
			if i%3 == 0 {
				continue
			}
			if age := now - bootTime - Time(i)*second/10; age < Time(capGrace)*Time(conn.Tick) {
				break
			}
			by.mustCreate(t, now, newFlow(header.ProtoTCP, false, 2000+uint32(i)))
			for j := range all {
				if r, _ := by.lookup(&all[j], now); (r == 0) != (j <= i && j%3 != 0) {
					t.Fatalf("%s: when flow %d should have ended, flow %d is live: %v", taker, i, j, r != 0)
				}
			}
		}
		validate(t, tb)
	}
}

// TestRingEntriesProveThemselves: an entry counts while its flow is of the ring's kind, and not if
// the record belongs to another flow of that kind.
func TestRingEntriesProveThemselves(t *testing.T) {
	tb, h := testTable(t, 100, 0)
	a := &tb.arenas[0]
	r := h.mustCreate(t, bootTime, newFlow(header.ProtoTCP, false, 1))
	own := h.rings[0][ShedHalfOpen-firstRing]
	entry := own.entry(0)
	if i, _, ok := a.still(entry, ShedHalfOpen); !ok || i != r.index() {
		t.Fatalf("a new flow: record %d, %v; want %d", i, ok, r.index())
	}
	h.establish(r, bootTime)
	if _, _, ok := a.still(entry, ShedHalfOpen); ok {
		t.Error("an established flow is taken for half-open")
	}
	h.Observe(r, ReplySide, seg(ReplySide, header.TCPRST), bootTime)
	if i, _, ok := a.still(h.rings[0][ShedReset-firstRing].entry(0), ShedReset); !ok || i != r.index() {
		t.Error("the flow is not in the ring of reset flows")
	}
	h.Delete(r)
	for n := uint32(2); ; n++ { // until the record is used again
		h.Enter(bootTime)
		again := h.mustCreate(t, bootTime, newFlow(header.ProtoTCP, false, n))
		if again == r {
			break
		}
		h.Delete(again)
	}
	if _, _, ok := a.still(entry, ShedHalfOpen); ok {
		t.Error("another flow in the same record is taken for the one that was there")
	}
	validate(t, tb)
}

// TestRingKeepsTheNewest: a full ring loses the oldest entries, and the search begins with the
// oldest remaining one.
func TestRingKeepsTheNewest(t *testing.T) {
	r := &ring{entries: make([]atomic.Uint32, 10)}
	for n := range uint32(25) {
		r.push(n)
	}
	if _, from, to := r.bounds(true); from != 15 || to != 25 || r.entry(from) != 15 || r.entry(to-1) != 24 {
		t.Errorf("positions %d to %d, entries %d to %d; want 15 to 24", from, to, r.entry(from), r.entry(to-1))
	}
	if _, from, to := r.bounds(false); from < to {
		t.Errorf("another handle sees positions %d to %d of an unpublished batch", from, to)
	}
}

// TestRingHammer: all workers make half-open flows at the cap and take from each other's rings. The
// cap holds, and established flows stay.
func TestRingHammer(t *testing.T) {
	const halfOpen, operations = 2000, 20_000
	tb, own := testTableOf(t, Config{IPv4Flows: 200_000, IPv6Flows: 200_000, HalfOpen: halfOpen,
		Timeouts: DefaultTimeouts()})
	own.Close()
	tb.ShareRings(hammerWorkers)
	seed := testSeed(t)
	var clock atomic.Uint64
	clock.Store(uint64(bootTime))
	var established atomic.Int64
	workers(t, tb, func(w int, h *Handle) {
		rnd := rand.New(rand.NewPCG(seed, uint64(w)))
		for op := range operations {
			if op%32 == 0 {
				now := clock.Add(uint64(5 * time.Millisecond))
				h.Enter(Time(now))
			}
			now := Time(clock.Load())
			f := newFlow(header.ProtoTCP, rnd.IntN(2) == 0, uint32(w*operations+op))
			r, s := h.Create(now, &f)
			if s == Created && rnd.IntN(50) == 0 {
				// The flow was not seen for so long that it may be shed.
				h.establish(r, now)
				established.Add(1)
			}
		}
	})
	c := tb.Counts()
	if c.HalfOpen > halfOpen+hammerWorkers*32 || c.States[Established] != uint64(established.Load()) {
		t.Errorf("%d half-open, the cap is %d; %d of %d established left", c.HalfOpen, halfOpen,
			c.States[Established], established.Load())
	}
	if c.Shed[ShedHalfOpen] < hammerWorkers*operations/2 {
		t.Errorf("only %d flows were shed at the cap, refused %v", c.Shed[ShedHalfOpen], c.Refused)
	}
	validate(t, tb)
}

// TestFailedSearchesAreRare: in a table that is full of established flows, Create fails without a
// search, except for one search in a millisecond; and as soon as a flow may be shed, Create finds
// it.
func TestFailedSearchesAreRare(t *testing.T) {
	const flows = 20_000
	_, h := testTable(t, flows, 0)
	var refs [flows]Ref
	for n := range refs {
		if n%64 == 0 {
			h.Enter(bootTime)
		}
		refs[n] = h.mustCreate(t, bootTime, newFlow(header.ProtoTCP, false, uint32(n)))
		h.establish(refs[n], bootTime)
	}
	now, examined := bootTime, 0
	for n := range uint32(100_000) { // 10 us apart: a second
		now += Time(10 * time.Microsecond)
		h.Enter(now)
		h.evictor.begin()
		f := newFlow(header.ProtoTCP, false, flows+n)
		if _, s := h.Create(now, &f); s != TableFull {
			t.Fatalf("Create: %v, although no flow may be shed", s)
		}
		examined += h.evictor.examined()
	}
	if most := 1010 * maxExamined; examined > most {
		t.Errorf("%d records examined in a second of refusals, want at most %d", examined, most)
	}
	for n := 0; n < flows; n += 50 { // 2 %, in no ring, as after a restart
		h.Flow(refs[n]).meta.Store(uint64(h.Flow(refs[n]).load().WithState(Closed)))
	}
	now += 2 * second / 1000
	f := newFlow(header.ProtoTCP, false, 3*flows)
	h.Enter(now)
	if _, s := h.Create(now, &f); s != Created {
		t.Errorf("Create: %v, although 2 %% of the flows may be shed", s)
	}
}
