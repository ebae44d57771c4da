package flowtable

import (
	"math/rand/v2"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

// sweepAll sweeps the whole table once.
func (h *Handle) sweepAll(now Time) (examined, expired int) {
	for all := int(h.t.positions()); examined < all; {
		part, ended := h.Sweep(now, all-examined)
		examined, expired = examined+part, expired+ended
	}
	return examined, expired
}

// TestSweepIsBounded: one call, with any max, examines and ends no more than takes 50 us, and the
// following calls examine the rest, each record once.
func TestSweepIsBounded(t *testing.T) {
	for _, c := range []struct {
		name string
		now  Time
	}{{"all expired", bootTime + 3600*second}, {"none expired", bootTime}} {
		const flows = 20_000
		tb, h := testTable(t, flows, 0)
		for n := range uint32(flows) {
			if n%64 == 0 {
				h.Enter(bootTime)
			}
			h.mustCreate(t, bootTime, newFlow(header.ProtoUDP, false, n))
		}
		ended, all := 0, int(tb.positions())
		for left := all; left > 0; {
			h.Enter(c.now)
			examined, expired := h.Sweep(c.now, left)
			if examined > 2048 || expired > 2048/32+32 || examined == 0 {
				t.Fatalf("%s: one call examined %d records and ended %d flows", c.name, examined, expired)
			}
			left, ended = left-examined, ended+expired
		}
		if want := flows * b2i(c.now != bootTime); ended != want {
			t.Errorf("%s: %d of %d flows ended", c.name, ended, want)
		}
		validate(t, tb)
	}
}

// TestSweepEndsExpiredFlows: expired and live flows of both families are mixed, more than are ended
// together. The sweep ends exactly the expired flows, and counts each once.
func TestSweepEndsExpiredFlows(t *testing.T) {
	const flows = 5*endingsSize + 3
	tb, h := testTable(t, 1000, 1000)
	var kept []Ref
	for i := range uint32(flows) {
		for _, v6 := range []bool{false, true} {
			for _, proto := range []uint8{header.ProtoUDP, header.ProtoTCP} {
				n := newFlow(proto, v6, i)
				r, s := h.Create(bootTime, &n)
				if s != Created {
					t.Fatalf("flow %d: %v", i, s)
				}
				if i%3 == 0 {
					h.Observe(r, ReplySide, seg(ReplySide, header.TCPSYN|header.TCPACK), bootTime+Time(20*time.Second))
					kept = append(kept, r)
				}
			}
		}
	}
	now := bootTime + Time(32*time.Second)
	if _, expired := h.sweepAll(now); expired != 4*flows-len(kept) {
		t.Errorf("%d flows expired, want %d", expired, 4*flows-len(kept))
	}
	for _, r := range kept {
		if !h.Flow(r).load().Live() {
			t.Errorf("flow %d is dead, and was seen 12 s ago", r)
		}
	}
	c := tb.Counts()
	if live := c.Live[0] + c.Live[1]; int(live) != len(kept) || int(c.Shed[ShedExpired]) != 4*flows-len(kept) {
		t.Errorf("%d live and %d expired by the counters, want %d and %d", live, c.Shed[ShedExpired], len(kept),
			4*flows-len(kept))
	}
	validate(t, tb)
}

// TestSweepSkipsRefreshedFlows: another worker may get a packet after the sweep has found the
// packet's flow expired and before the sweep ends it. The first of the two wins.
func TestSweepSkipsRefreshedFlows(t *testing.T) {
	tb, h := testTable(t, 1000, 0)
	other, err := tb.Register()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.Enter(bootTime)
	a, now := h.arena(false), bootTime+Time(time.Minute)
	var refs [3]Ref
	for i := range refs {
		n := newFlow(header.ProtoUDP, false, uint32(i))
		refs[i], _ = h.Create(bootTime, &n)
		h.endings.add(h, a, refs[i].index(), h.Flow(refs[i]).load())
	}
	other.Observe(refs[0], ReplySide, seg(ReplySide, 0), now)
	other.Delete(refs[1])
	if ended := h.endings.end(h, a); ended != 1 {
		t.Errorf("%d flows ended, want only the unchanged one", ended)
	}
	for i, live := range []bool{true, false, false} {
		if h.Flow(refs[i]).load().Live() != live {
			t.Errorf("flow %d: live %v, want %v", i, !live, live)
		}
	}
	validate(t, tb)
}

// TestSweepCountsEndedFlows: a sweep may cover a million records at once, and other handles make
// flows meanwhile. The flows that it has ended must not make their Creates fail.
func TestSweepCountsEndedFlows(t *testing.T) {
	tb, h := testTableOf(t, Config{IPv4Flows: 1000, HalfOpen: endingsSize, Timeouts: DefaultTimeouts()})
	other, err := tb.Register()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	a := h.arena(false)
	for i := range uint32(endingsSize) {
		n := newFlow(header.ProtoTCP, false, i)
		r := h.mustCreate(t, bootTime, n)
		h.endings.add(h, a, r.index(), h.Flow(r).load())
	}
	h.Enter(bootTime) // publishes the counters of its flows
	other.Enter(bootTime)
	n := newFlow(header.ProtoTCP, false, endingsSize)
	if _, s := other.Create(bootTime, &n); s != HalfOpenLimit {
		t.Fatalf("a flow above the limit: %v", s)
	}
	h.endings.end(h, a)
	other.Enter(bootTime)
	if _, s := other.Create(bootTime, &n); s != Created {
		t.Errorf("%v, though nothing is half-open any more", s)
	}
	validate(t, tb)
}

// TestHammerSweep: some workers sweep the whole table, while others send packets on flows that are
// about to be ended, end them, or make them again under the same keys, with a handful of ports to a
// backend. Now and then all stop: then the table must be valid.
func TestHammerSweep(t *testing.T) {
	rounds := 60
	if testing.Short() || size.Race {
		rounds = 12
	}
	tb, own := testTableOf(t, Config{IPv4Flows: 2000, IPv6Flows: 1000, HalfOpen: 3000, Timeouts: DefaultTimeouts()})
	own.Close()
	seed := testSeed(t)
	now := bootTime
	for round := range rounds {
		workers(t, tb, func(w int, h *Handle) {
			rnd := rand.New(rand.NewPCG(seed, uint64(round*hammerWorkers+w)))
			at := now
			for op := range 1500 {
				if op%32 == 0 {
					at += Time(rnd.IntN(int(4 * second)))
					h.Enter(at)
				}
				if w%2 == 0 && op%64 == 0 {
					h.sweepAll(at)
				}
				n := newFlow([]uint8{header.ProtoTCP, header.ProtoUDP}[rnd.IntN(2)], rnd.IntN(3) == 0,
					uint32(rnd.IntN(400)))
				n.Backend, n.BackendRef = addrN(n.Client.V6, 11, uint32(rnd.IntN(2))), uint32(1+rnd.IntN(2))
				n.Ports = Ports{First: 1000, Count: 400, Start: uint16(rnd.IntN(400)), Stride: 7}
				r, side := h.lookup(&n.Client, at)
				if r == 0 {
					if r, _ = h.Create(at, &n); r == 0 {
						continue
					}
					side = ClientSide
				}
				switch rnd.IntN(8) {
				case 0:
					h.Delete(r)
				case 1:
					h.Abandon(r, at)
				case 2, 3:
					flags := []uint8{header.TCPSYN | header.TCPACK, header.TCPACK,
						header.TCPFIN | header.TCPACK}[rnd.IntN(3)]
					h.Observe(r, side^1, seg(side^1, flags), at)
				case 4, 5:
					h.Observe(r, side, seg(side, []uint8{header.TCPACK, header.TCPFIN | header.TCPACK,
						header.TCPRST}[rnd.IntN(3)]), at)
				}
			}
		})
		validate(t, tb)
		now += Time(3 * time.Minute) // ahead of all
	}
	if c := tb.Counts(); c.Shed[ShedExpired] < uint64(rounds)*100 {
		t.Errorf("%d flows expired in %d rounds", c.Shed[ShedExpired], rounds)
	}
}
