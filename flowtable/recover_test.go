package flowtable

import (
	"errors"
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

func copyOf(mem []byte) []byte {
	c := heapMemory(int64(len(mem)))
	copy(c, mem)
	return c
}

// recovered recovers a copy of a table's memory and validates the result.
func recovered(t *testing.T, mem []byte, c Config, now Time) (*Table, *Handle, Recovery) {
	t.Helper()
	tb, rec, err := Recover(mem, c, now)
	if err != nil {
		t.Fatal(err)
	}
	validate(t, tb)
	h, err := tb.Register()
	if err != nil {
		t.Fatal(err)
	}
	h.Enter(now)
	return tb, h, rec
}

func TestRecover(t *testing.T) {
	c := Config{IPv4Flows: 1000, IPv6Flows: 1000, HalfOpen: 2000, Timeouts: DefaultTimeouts()}
	tb, h := testTableOf(t, c)
	protos := []uint8{header.ProtoTCP, header.ProtoUDP, header.ProtoICMP}
	var flows []NewFlow
	var want []Info
	for n := range uint32(2000) {
		f := newFlow(protos[n%3], n&1 == 1, n)
		r := h.mustCreate(t, bootTime, f)
		if f.Client.Proto == header.ProtoTCP {
			h.establish(r, bootTime)
		}
		h.Bind(r, 3, f.Service, f.BackendRef, 1, 2)
		if n%5 == 0 {
			h.Delete(r)
			continue
		}
		var i Info
		h.Inspect(r, bootTime, &i)
		flows, want = append(flows, f), append(want, i)
	}

	tb2, h2, rec := recovered(t, copyOf(tb.mem), c, bootTime+10*second)
	if rec != (Recovery{Recovered: len(flows)}) {
		t.Errorf("%+v, want %d recovered", rec, len(flows))
	}
	if tb2.Incarnation() != 2 {
		t.Errorf("incarnation %d, want 2", tb2.Incarnation())
	}
	for n := range flows {
		r, side := h2.lookup(&flows[n].Client, bootTime+10*second)
		var got Info
		if r == 0 || side != ClientSide || !h2.Inspect(r, bootTime, &got) {
			t.Fatalf("flow %d is gone", n)
		}
		want[n].Binding, want[n].Counted, want[n].Service, want[n].Backend = 0, false, 0, 0
		if got != want[n] {
			t.Fatalf("recovered as %+v\nwant %+v", got, want[n])
		}
		if h2.Flow(r).Delta(ReplySide) != h.Flow(want[n].Ref).Delta(ReplySide) {
			t.Fatalf("flow %d has another delta", n)
		}
	}
	if a, b := tb.Counts(), tb2.Counts(); a.States != b.States || a.Live != b.Live {
		t.Errorf("counts %v, were %v", b.States, a.States)
	}
	// The recovered table can be filled and emptied.
	for n := range flows {
		r, _ := h2.lookup(&flows[n].Client, bootTime+10*second)
		h2.Delete(r)
		if n%64 == 0 {
			h2.Enter(bootTime + 10*second)
		}
	}
	for range 16 {
		h2.Enter(bootTime + 10*second)
	}
	for n := range uint32(2000) {
		h2.mustCreate(t, bootTime+10*second, newFlow(header.ProtoUDP, n&1 == 1, 50_000+n))
	}
	validate(t, tb2)

	_, _, rec = recovered(t, copyOf(tb.mem), c, bootTime+50*second)
	if rec.Expired == 0 || rec.Expired+rec.Recovered != len(flows) {
		t.Errorf("40 s later: %+v of %d", rec, len(flows))
	}
}

// A record that is damaged, is from the future, or duplicates another is dropped and counted; the
// other flows live.
func TestRecoverDamaged(t *testing.T) {
	c := Config{IPv4Flows: 100, IPv6Flows: 100, Timeouts: DefaultTimeouts()}
	for _, k := range []struct {
		name   string
		damage func(tb *Table, i uint32)
	}{
		{"address", func(tb *Table, i uint32) { tb.arenas[0].four[i].addr[1] ^= 1 << 40 }},
		{"IPv6 address", func(tb *Table, i uint32) { tb.arenas[1].six[i].addr[0][3] ^= 1 }},
		{"port", func(tb *Table, i uint32) { tb.arenas[0].four[i].ports[0].Store(7) }},
		{"protocol",
			func(tb *Table, i uint32) {
				f := tb.arenas[0].flow(i)
				f.meta.Store(f.meta.Load() ^ 1<<conn.MetaProtoShift)
			}},
		{"state of another protocol", func(tb *Table, i uint32) {
			f := tb.arenas[0].flow(i)
			f.meta.Store(uint64(f.load().WithState(Established)))
		}},
		{"impossible state",
			func(tb *Table, i uint32) { f := tb.arenas[0].flow(i); f.meta.Store(uint64(f.load().WithState(15))) }},
		{"pending", func(tb *Table,
			i uint32) {
			f := tb.arenas[0].flow(i)
			f.meta.Store(uint64(f.load() | conn.MetaPending))
		}},
		{"from the future", func(tb *Table, i uint32) {
			f := tb.arenas[0].flow(i)
			f.meta.Store(uint64(f.load().At((bootTime + 3600*second).Ticks())))
		}},
		{"double", func(tb *Table, i uint32) {
			r := tb.arenas[0].four
			r[i].addr = r[i+1].addr
			r[i].sum = r[i+1].sum
			for s := range r[i].ports {
				r[i].ports[s].Store(r[i+1].ports[s].Load())
			}
		}},
	} {
		t.Run(k.name, func(t *testing.T) {
			tb, h := testTableOf(t, c)
			for n := range uint32(20) {
				h.mustCreate(t, bootTime, newFlow(header.ProtoUDP, n&1 == 1, n))
			}
			k.damage(tb, 5)
			_, _, rec := recovered(t, copyOf(tb.mem), c, bootTime+second)
			if rec != (Recovery{Recovered: 19, Torn: 1, Damaged: b2i(k.name != "pending")}) {
				t.Errorf("%+v, want 19 recovered and 1 torn", rec)
			}
		})
	}
}

func TestRecoverRefusesOtherLayouts(t *testing.T) {
	c := Config{IPv4Flows: 100, Timeouts: DefaultTimeouts()}
	tb, _ := testTableOf(t, c)
	for name, damage := range map[string]func(*head){
		"magic":       func(h *head) { h.magic++ },
		"version":     func(h *head) { h.version++ },
		"slots":       func(h *head) { h.slots++ },
		"record size": func(h *head) { h.recordSize[1] = 96 },
		"flows":       func(h *head) { h.flows[0]-- },
		"no key":      func(h *head) { h.secret = HashKey{} },
	} {
		saved := *tb.head
		damage(tb.head)
		if _, _, err := Recover(tb.mem, c, bootTime); !errors.Is(err, ErrLayout) {
			t.Errorf("%s: %v, want ErrLayout", name, err)
		}
		*tb.head = saved
	}
	if _, _, err := Recover(tb.mem, c, bootTime); err != nil {
		t.Errorf("undamaged: %v", err)
	}
}

// The process dies at any instant: the memory is copied while workers change it, and the copy is
// recovered as a valid table of flows that existed.
func TestRecoverMidOperation(t *testing.T) {
	if size.Race {
		t.Skip("copying memory under its writers is an intended race: it simulates a crash")
	}
	c := Config{IPv4Flows: 4000, IPv6Flows: 4000, Timeouts: DefaultTimeouts()}
	tb, own := testTableOf(t, c)
	own.Close()
	seed := testSeed(t)
	make1 := func(n uint32) NewFlow {
		f := newFlow(header.ProtoTCP, n&1 == 1, n)
		f.Backend = addrN(n&1 == 1, 11, n%3)
		f.Ports = Ports{First: 1000, Count: 400, Start: uint16(n % 400), Stride: 7}
		return f
	}
	crashCount := 40
	if testing.Short() {
		crashCount = 10
	}
	var stop atomic.Bool
	var crashes sync.WaitGroup
	crashes.Go(func() {
		defer stop.Store(true)
		found, torn := 0, 0
		for range crashCount {
			time.Sleep(time.Millisecond) // lets the writers write; nothing depends on the duration
			_, h, rec := recovered(t, copyOf(tb.mem), c, bootTime+second)
			found, torn = found+rec.Recovered, torn+rec.Torn
			for n := range uint32(800) {
				f := make1(n)
				r, side := h.lookup(&f.Client, bootTime+second)
				if r == 0 {
					continue
				}
				reply := h.reply(r)
				if side != ClientSide || reply.Src != f.Backend || reply.SrcPort != f.BackendPort ||
					reply.Dst != f.Source {
					t.Errorf("flow %d recovered with reply %+v", n, reply)
				}
				if again, _ := h.lookup(&reply, bootTime+second); again != r {
					t.Errorf("flow %d is not found by its reply", n)
				}
			}
		}
		t.Logf("%d crashes: %d flows recovered, %d torn", crashCount, found, torn)
		if found == 0 {
			t.Error("nothing was ever recovered")
		}
	})
	workers(t, tb, func(w int, h *Handle) {
		rnd := rand.New(rand.NewPCG(seed, uint64(w)))
		for !stop.Load() {
			h.Enter(bootTime)
			for range 16 {
				f := make1(uint32(rnd.IntN(800)))
				if r, _ := h.lookup(&f.Client, bootTime); r != 0 {
					h.Delete(r)
				} else if _, s := h.Create(bootTime, &f); s == TableFull {
					runtime.Gosched() // all records are in limbo: let the others enter
				}
			}
		}
	})
	crashes.Wait()
	validate(t, tb)
}
