package flowtable

import (
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

// The SYNs that a client sends after its first one, by age of the flow, and which of them count as
// the second repetition.
func TestRepeated(t *testing.T) {
	const no, yes = false, true
	type syn struct {
		at   time.Duration
		want bool
	}
	ms := time.Millisecond
	for _, c := range []struct {
		name string
		syns []syn
	}{
		{"RFC 6298", []syn{{1000 * ms, no}, {3000 * ms, yes}, {7000 * ms, yes}}},
		{"Linux, linear", []syn{{1000 * ms, no}, {2000 * ms, yes}, {3000 * ms, yes}, {4000 * ms, yes}}},
		{"copies of the second repetition", []syn{{1000 * ms, no}, {3000 * ms, yes}, {3001 * ms, no}, {3400 * ms, no},
			{7000 * ms, yes}}},
		{"copies of the first SYN", []syn{{0, no}, {1 * ms, no}, {300 * ms, no}, {1000 * ms, no}, {2000 * ms, yes}}},
		{"copies of the first repetition", []syn{{1600 * ms, no}, {1601 * ms, no}, {1900 * ms, no}, {3000 * ms, yes},
			{3001 * ms, no}}},
		{"early ones", []syn{{600 * ms, no}, {1300 * ms, no}, {1800 * ms, yes}}},
		{"the first repetition was lost", []syn{{3000 * ms, no}, {7000 * ms, yes}}},
		{"a copy, and the first repetition lost", []syn{{300 * ms, no}, {3000 * ms, no}, {7000 * ms, yes}}},
		{"late", []syn{{9 * time.Second, no}, {10 * time.Second, yes}}},
		{"a worker whose batch is older", []syn{{1600 * ms, no}, {1400 * ms, no}, {1500 * ms, no}, {2200 * ms, yes}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb, h := testTable(t, 10, 0)
			const start = bootTime / Time(conn.Tick) * Time(conn.Tick)
			r := h.mustCreate(t, start, newFlow(header.ProtoTCP, false, 1))
			for _, s := range c.syns {
				seen := h.Flow(r).load().Seen()
				if got := h.Repeated(r, start+Time(s.at), false); got != s.want {
					t.Errorf("SYN at %v: %v, want %v", s.at, got, s.want)
				}
				if m := h.Flow(r).load(); m.Seen() != seen || m.State() != SynSeen {
					t.Errorf("SYN at %v: refreshed, or %v", s.at, m.State())
				}
			}
			validate(t, tb)
		})
	}
}

// If the backend has answered, or the flow has ended, no packet is a repetition, and the notes of
// earlier ones do not affect the next state.
func TestRepeatedAnswered(t *testing.T) {
	_, h := testTable(t, 10, 0)
	r := h.mustCreate(t, bootTime, newFlow(header.ProtoTCP, false, 1))
	h.Repeated(r, bootTime+second, false)
	h.Repeated(r, bootTime+2*second, false)
	if m := h.Flow(r).load(); m&conn.MetaAgain == 0 || m&conn.MetaRepeat == 0 {
		t.Fatalf("meta %#x has no note of a repetition", m)
	}
	h.Observe(r, ReplySide, seg(ReplySide, header.TCPSYN|header.TCPACK), bootTime+3*second)
	if m := h.Flow(r).load(); m.State() != SynRecv || m&(conn.MetaNotes|0xff<<56) != 0 {
		t.Fatalf("after the answer: %v, notes %#x", m.State(), m&conn.MetaNotes)
	}
	for n := range Time(3) {
		if h.Repeated(r, bootTime+(4+2*n)*second, false) {
			t.Error("a repetition was reported on a flow with an answer")
		}
	}
	if h.Abandon(r, bootTime+5*second) || h.Flow(r).State() != SynRecv {
		t.Error("a flow with an answer was abandoned")
	}
	h.Delete(r)
	if h.Repeated(r, bootTime+9*second, false) || h.Abandon(r, bootTime+9*second) {
		t.Error("a repetition was reported on a flow that has ended")
	}
}

// A client opens a connection again, on an open flow whose backend is gone or not: which of its
// SYNs, among the packets in between, count as the second repetition.
func TestRepeatedOnAnOpenConnection(t *testing.T) {
	const ms = Time(time.Millisecond)
	type packet struct {
		at    Time
		side  Side
		flags uint8
		want  bool // of a SYN
	}
	syn := func(at Time, want bool) packet { return packet{at, ClientSide, header.TCPSYN, want} }
	for _, c := range []struct {
		name    string
		gone    bool
		ends    bool // may be abandoned then: repeated, and not answered since
		packets []packet
	}{
		{"RFC 6298", true, true, []packet{syn(0, false), syn(1000*ms, false), syn(3000*ms, true), syn(7000*ms, true)}},
		{"copies", true, true, []packet{syn(100*ms, false), syn(101*ms, false), syn(1100*ms, false),
			syn(1200*ms, false), syn(1000*ms, false), syn(3000*ms, true), syn(3001*ms, false)}},
		{"hours between", true, true, []packet{syn(0, false), syn(3601*second, false), syn(7201*second, true)}},
		{"the backend is there", false, false, []packet{syn(0, false), syn(1000*ms, false), syn(3000*ms, false),
			syn(7000*ms, false)}},
		{"the connection is in use", true, true, []packet{syn(0, false), syn(1000*ms, false),
			{1500 * ms, ClientSide, header.TCPACK, false}, syn(3000*ms, false), syn(7000*ms, false), syn(15000*ms,
				true)}},
		{"challenged", true, false, []packet{syn(0, false), syn(1000*ms, false), {1100 * ms, ReplySide, header.TCPACK,
			false}, syn(3000*ms, false)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb, h := testTable(t, 10, 0)
			const start = bootTime / Time(conn.Tick) * Time(conn.Tick)
			r := h.mustCreate(t, start, newFlow(header.ProtoTCP, false, 1))
			for i, p := range []packet{
				{0, ReplySide, header.TCPSYN | header.TCPACK, false}, {0, ClientSide, header.TCPACK, false}, {0,
					ReplySide, header.TCPACK, false},
			} {
				if h.Awaits(r) != (i == 0) {
					t.Errorf("after %d packets it waits for an answer: %v", i, h.Awaits(r))
				}
				h.Observe(r, p.side, seg(p.side, p.flags), start)
			}
			answered := true
			for _, p := range c.packets {
				again := false
				if p.flags == header.TCPSYN {
					again = h.Repeated(r, start+p.at, c.gone)
				}
				if again != p.want {
					t.Errorf("SYN at %v: %v, want %v", time.Duration(p.at), again, p.want)
				}
				h.Observe(r, p.side, seg(p.side, p.flags), start+p.at)
				answered = p.flags != header.TCPSYN
				if h.Flow(r).State() != Established || h.Awaits(r) == answered {
					t.Errorf("at %v: %v, waits for an answer: %v", time.Duration(p.at), h.Flow(r).State(), h.Awaits(r))
				}
			}
			last := c.packets[len(c.packets)-1]
			if h.Abandon(r, start+last.at) != c.ends {
				t.Errorf("abandoned: %v", !c.ends)
			}
			validate(t, tb)
		})
	}
}

// For any number of copies at any number of workers, one worker reports the repetition.
func TestRepeatedOnce(t *testing.T) {
	flows := 20_000
	if testing.Short() || size.Race {
		flows = 4_000
	}
	tb, own := testTableOf(t, Config{IPv4Flows: uint32(flows), HalfOpen: uint32(flows), Timeouts: DefaultTimeouts()})
	refs := make([]Ref, flows)
	for i := range refs {
		refs[i] = own.mustCreate(t, bootTime, newFlow(header.ProtoTCP, false, uint32(i)))
		own.Repeated(refs[i], bootTime+second, false)
	}
	given := make([]atomic.Int32, flows)
	var here [hammerWorkers]atomic.Int32 // how far each worker is: they advance together
	workers(t, tb, func(w int, h *Handle) {
		for i, r := range refs {
			here[w].Store(int32(i))
			for ahead := true; ahead; {
				ahead = false
				for o := range here {
					ahead = ahead || here[o].Load() < int32(i)-2
				}
				if ahead {
					runtime.Gosched()
				}
			}
			if h.Repeated(r, bootTime+2*second, false) {
				given[i].Add(1)
			}
		}
		here[w].Store(math.MaxInt32)
	})
	for i := range given {
		if n := given[i].Load(); n != 1 {
			t.Errorf("flow %d: the second repetition was reported %d times", i, n)
		}
	}
}

func TestAbandon(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		tb, h := testTable(t, 100, 100)
		flow := func(n uint32) NewFlow {
			f := newFlow(header.ProtoTCP, v6, n)
			f.Backend = addrN(v6, 11, 1)
			f.Ports = Ports{First: 7000, Count: 2, Start: 0, Stride: 1}
			return f
		}
		r := h.mustCreate(t, bootTime, flow(1))
		reply := h.reply(r)
		hash := h.Hash(&reply)
		if h.Abandoned(hash, bootTime) {
			t.Error("the answer to a live flow counts as late")
		}
		if !h.Abandon(r, bootTime) || h.Flow(r).State() != None {
			t.Fatal("the flow is not abandoned")
		}
		if found, _ := h.lookup(&reply, bootTime); found != 0 {
			t.Error("an answer still finds the abandoned flow")
		}
		last := bootTime + 2*60*second
		if !h.Abandoned(hash, bootTime) || !h.Abandoned(hash, last) || h.Abandoned(hash, last+second) {
			t.Error("answers should be known for 2 minutes, and not longer")
		}
		other := reply
		other.DstPort++
		if h.Abandoned(h.Hash(&other), bootTime) {
			t.Error("a stray packet counts as an answer")
		}

		// The port is the last one that Create takes.
		moved := h.mustCreate(t, bootTime, flow(1))
		if port := h.reply(moved).DstPort; port != 7001 {
			t.Errorf("another flow to the backend has port %d, want 7001", port)
		}
		if port := h.reply(h.mustCreate(t, bootTime+5*second, flow(2))).DstPort; port != 7000 {
			t.Errorf("with no other left: port %d, want 7000", port)
		}
		validate(t, tb)
	}
}

// An answer and Abandon at the same time: only one of them succeeds.
func TestAbandonRace(t *testing.T) {
	rounds := uint32(20_000)
	if testing.Short() || size.Race {
		rounds = 3_000
	}
	tb, own := testTable(t, 20_000, 0)
	other, err := tb.Register()
	if err != nil {
		t.Fatal(err)
	}
	kept, ended := 0, 0
	for n := range rounds {
		own.Enter(bootTime)
		other.Enter(bootTime)
		r := own.mustCreate(t, bootTime, newFlow(header.ProtoTCP, false, n))
		var abandoned bool
		var wg sync.WaitGroup
		wg.Go(func() { abandoned = other.Abandon(r, bootTime) })
		own.Observe(r, ReplySide, seg(ReplySide, header.TCPSYN|header.TCPACK), bootTime)
		wg.Wait()
		state := own.Flow(r).State()
		if want := map[bool]State{true: None, false: SynRecv}[abandoned]; state != want {
			t.Fatalf("abandoned: %v, but the flow is %v", abandoned, state)
		}
		if abandoned {
			ended++
		} else {
			kept++
			own.Delete(r)
		}
	}
	validate(t, tb)
	if t.Logf("%d kept, %d ended", kept, ended); ended == 0 || kept == 0 {
		t.Log("the race was one-sided on this machine")
	}
}

// The memory of abandoned flows replaces the word that expires first, and recognises the keys it
// has.
func TestAbandonedMemory(t *testing.T) {
	var a abandoned
	const now = Ticks(5000)
	key := func(n int) uint64 { return uint64(n+1)<<32 | 7 } // all of one set
	for n := range 8 {
		a.note(key(n), now+10+Ticks(n+3)%8) // key 5 ends first
	}
	a.note(key(3), now+100) // again: no second word
	for n := range 8 {
		if !a.has(key(n), now) {
			t.Errorf("key %d of 8 is forgotten", n)
		}
	}
	a.note(key(8), now+50)
	if a.has(key(5), now) || !a.has(key(8), now) || !a.has(key(0), now) {
		t.Error("a ninth key should take the place of the one that ends first")
	}

	// As many random keys as the sets hold, and how often other keys are mistaken for them.
	const notes = 8_000
	rnd := rand.New(rand.NewPCG(testSeed(t), 0))
	keys := make([]uint64, notes)
	for i := range keys {
		keys[i] = rnd.Uint64()
		a.note(keys[i], now+1000)
	}
	lost, wrong := 0, 0
	for i := range keys {
		if !a.has(keys[i], now) {
			lost++
		}
	}
	for range 1_000_000 {
		if a.has(rnd.Uint64(), now) {
			wrong++
		}
	}
	// Sets of 8 with 1.95 on average: one of 5,000 has more than 8, and one key is lost on average.
	// 4.5 in 10^10 strays are mistaken for answers. More than 20 lost keys, or more than 2 mistaken
	// strays, occur in one of 10^10 runs.
	if lost > notes/400 || wrong > 2 {
		t.Errorf("%d of %d are lost, %d of 1,000,000 strays are taken for answers", lost, notes, wrong)
	}
}
