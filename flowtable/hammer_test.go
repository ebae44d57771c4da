package flowtable

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

const hammerWorkers = 4

// workers runs f once per worker, each with a handle, and waits for all.
func workers(t *testing.T, tb *Table, f func(w int, h *Handle)) {
	t.Helper()
	var wg sync.WaitGroup
	for w := range hammerWorkers {
		h, err := tb.Register()
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer h.Close()
			h.Enter(bootTime)
			f(w, h)
		})
	}
	wg.Wait()
}

// All workers create the same flows at the same moment: exactly one worker makes each flow, and the
// others get that flow. There are so few ports that the reply keys race too.
func TestConcurrentCreatesAgree(t *testing.T) {
	const flows, rounds = 32, 300
	tb, own := testTable(t, 64, 0)
	own.Close()
	var refs [rounds][flows][hammerWorkers]Ref
	var wins [rounds][flows]atomic.Int32
	gates := make([]sync.WaitGroup, 2*rounds)
	for i := range gates {
		gates[i].Add(hammerWorkers)
	}
	workers(t, tb, func(w int, h *Handle) {
		rnd := rand.New(rand.NewPCG(uint64(w), 2))
		for round := range rounds {
			h.Enter(bootTime)
			gates[2*round].Done()
			gates[2*round].Wait()
			for i := range flows {
				n := newFlow(header.ProtoICMP, false, uint32(i))
				n.Backend = addrN(false, 11, 1)
				n.Ports = Ports{First: 7000, Count: 4 * flows, Start: uint16(rnd.IntN(8)), Stride: 1}
				n.Ports.Start += uint16(4 * i) // neighbours overlap
				r, s := h.Create(bootTime, &n)
				if s == Created {
					wins[round][i].Add(1)
				} else if s != Exists {
					t.Errorf("round %d flow %d: %v", round, i, s)
				}
				refs[round][i][w] = r
			}
			gates[2*round+1].Done()
			gates[2*round+1].Wait()
			for i := w; i < flows; i += hammerWorkers {
				h.Delete(refs[round][i][w])
			}
		}
	})
	for round := range rounds {
		for i := range flows {
			if n := wins[round][i].Load(); n != 1 {
				t.Fatalf("round %d flow %d: %d winners", round, i, n)
			}
			for _, r := range refs[round][i] {
				if r == 0 || r != refs[round][i][0] {
					t.Fatalf("round %d flow %d: refs %v", round, i, refs[round][i])
				}
			}
		}
	}
	validate(t, tb)
	if c := tb.Counts(); c.Live[0] != 0 || c.Created[0] != rounds*flows {
		t.Errorf("%d live, %d created; want 0 and %d", c.Live[0], c.Created[0], rounds*flows)
	}
}

// All workers want slots of one chain, which is full: each gets one.
func TestFullChainHammer(t *testing.T) {
	const each = 1000
	tb, own := testTable(t, 1000, 0)
	flow := oneHome(tb, own, 17)
	var flows [hammerWorkers][each]NewFlow
	for w := range flows {
		for i := range flows[w] {
			flows[w][i] = flow(header.ProtoUDP)
		}
	}
	own.Close()
	workers(t, tb, func(w int, h *Handle) {
		for i := range flows[w] {
			if i%16 == 0 {
				h.Enter(bootTime)
			}
			if _, s := h.Create(bootTime, &flows[w][i]); s != Created {
				t.Errorf("worker %d, flow %d: %v, although all flows of the chain are unanswered", w, i, s)
			}
		}
	})
	validate(t, tb)
	if c := tb.Counts(); c.Live[0] > memberBits || c.Shed[ShedUnreplied] != hammerWorkers*each-uint64(c.Live[0]) {
		t.Errorf("%d live, %d shed, of %d; a chain has %d", c.Live[0], c.Shed[ShedUnreplied], hammerWorkers*each,
			memberBits)
	}
}

// All operations at once, with a shadow table: each source port in use is marked with its worker,
// so a port given twice is detected at once. The port range is filled to 99 %.
func TestHammer(t *testing.T) {
	const clients, ports = 4000, 1000
	// Many more records than flows: while the scheduler keeps one worker from running, the flows
	// that the others end stay in limbo.
	tb, own := testTable(t, 50_000, 0)
	own.Close()
	var shadow [ports]atomic.Int32
	operations := 200_000
	if testing.Short() || size.Race {
		operations = 10_000
	}
	seed := testSeed(t)
	var exhausted, created atomic.Int64
	var used atomic.Int32
	workers(t, tb, func(w int, h *Handle) {
		rnd := rand.New(rand.NewPCG(seed, uint64(w)))
		type mine struct {
			ref  Ref
			port uint16
		}
		var own []mine
		drop := func(i int) {
			m := own[i]
			own[i] = own[len(own)-1]
			own = own[:len(own)-1]
			if shadow[m.port].Swap(0) == 0 {
				t.Errorf("port %d was given to two", m.port)
			}
			used.Add(-1)
			h.Delete(m.ref)
		}
		for op := range operations {
			if op%16 == 0 {
				if rnd.IntN(4) == 0 {
					h.Leave()
				}
				h.Enter(bootTime)
			}
			n := newFlow(header.ProtoTCP, false, uint32(rnd.IntN(clients)))
			n.Backend, n.SourcePort = addrN(false, 11, 1), uint16(rnd.IntN(ports))
			n.SourcePort += 1000
			n.Ports = Ports{First: 1000, Count: ports, Start: uint16(rnd.IntN(ports)),
				Stride: uint16(1 + 2*rnd.IntN(400))}
			switch do := rnd.IntN(10); {
			case do < 4 && used.Load() < ports*99/100:
				r, s := h.Create(bootTime, &n)
				switch s {
				case Created:
					created.Add(1)
					used.Add(1)
					port := h.reply(r).DstPort - 1000
					if shadow[port].Swap(1) != 0 {
						t.Errorf("port %d is given a second time", port)
					}
					own = append(own, mine{r, port})
					h.establish(r, bootTime)
				case PortsExhausted:
					exhausted.Add(1)
				case HalfOpenLimit, TableFull:
					t.Errorf("%v with %d flows", s, used.Load())
				}
			case do < 6 && len(own) > 0 && used.Load() > ports*98/100:
				drop(rnd.IntN(len(own)))
			case do == 6:
				h.Sweep(bootTime, 100)
			default:
				r, side := h.lookup(&n.Client, bootTime)
				if r == 0 {
					continue
				}
				var out header.Tuple
				if h.Outgoing(r, ReplySide, &out); side != ClientSide || out != n.Client.Reverse() {
					t.Errorf("looked up %+v, found side %d of %+v", n.Client, side, out.Reverse())
				}
				reply := h.reply(r)
				if again, s := h.lookup(&reply, bootTime); again != 0 && s != ReplySide {
					t.Errorf("reply tuple found on side %d", s)
				}
				h.Bind(r, uint32(op), 1, uint32(rnd.IntN(3)), 3, 4) // as after a change of routes
				side = Side(rnd.IntN(2))
				h.Observe(r, side, seg(side, header.TCPACK), bootTime)
			}
		}
		for len(own) > 0 {
			if len(own)%16 == 0 {
				h.Enter(bootTime)
			}
			drop(len(own) - 1)
		}
	})
	validate(t, tb)
	c := tb.Counts()
	if c.Live[0] != 0 || c.Created[0] != uint64(created.Load()) ||
		c.Refused[PortsExhausted] != uint64(exhausted.Load()) {
		t.Errorf("counts %+v; want 0 live, %d created, %d exhausted", c, created.Load(), exhausted.Load())
	}
	t.Logf("%d created, %d found no port at up to 99 %% fill", created.Load(), exhausted.Load())
}

// As above, but every worker ends flows of every other, time passes, flows expire while they are in
// use, the table is full, handles leave and enter, and both families and all protocols take part.
// In the end the table must be valid.
func TestHammerUnderPressure(t *testing.T) {
	tb, own := testTableOf(t, Config{IPv4Flows: 300, IPv6Flows: 100, HalfOpen: 50, Timeouts: DefaultTimeouts()})
	own.Close()
	operations := 150_000
	if testing.Short() || size.Race {
		operations = 8_000
	}
	seed := testSeed(t)
	var clock atomic.Uint64
	clock.Store(uint64(bootTime))
	protos := []uint8{header.ProtoTCP, header.ProtoUDP, header.ProtoICMP}
	workers(t, tb, func(w int, h *Handle) {
		rnd := rand.New(rand.NewPCG(seed, uint64(w)))
		buf := make([]Info, 20)
		var held []Ref
		var cursor uint64
		now := bootTime
		for op := range operations {
			if op%32 == 0 {
				now = Time(clock.Add(uint64(rnd.IntN(int(second / 4)))))
				if rnd.IntN(4) == 0 {
					h.Leave()
				}
				if rnd.IntN(50) == 0 {
					h.Leave()
					cursor, _ = h.Dump(cursor, buf, now)
				}
				h.Enter(now)
				held = held[:0]
			}
			n := newFlow(protos[rnd.IntN(3)], rnd.IntN(3) == 0, uint32(rnd.IntN(1000)))
			n.Backend = addrN(n.Client.V6, 11, uint32(rnd.IntN(2)))
			n.Ports = Ports{First: 1000, Count: 150, Start: uint16(rnd.IntN(150)), Stride: 7}
			r, side := h.lookup(&n.Client, now)
			if r == 0 {
				r, _ = h.Create(now, &n)
				if r == 0 {
					continue
				}
				side = ClientSide
			}
			// A ref found in this batch may be used until the end of the batch, even if the flow
			// was ended meanwhile, by Bind too, and even if the handle that ended it has left.
			held = append(held, r)
			h.Bind(held[rnd.IntN(len(held))], uint32(op), 1, uint32(rnd.IntN(3)), 3, 4)
			switch rnd.IntN(20) {
			case 0:
				h.Delete(r)
			case 1:
				h.Sweep(now, 64)
			case 2:
				h.Closing(r)
			case 4:
				if h.Inspect(r, now, &buf[0]) && buf[0].Client != n.Client {
					t.Errorf("flow of %+v inspected as %+v", n.Client, buf[0].Client)
				}
			default:
				from := side ^ Side(rnd.IntN(2))
				h.Observe(r, from, seg(from, uint8(rnd.IntN(32))), now)
			}
		}
	})
	validate(t, tb)
	c := tb.Counts()
	for f := range c.Live {
		if over := uint64(hammerWorkers * 32); c.Live[f] > c.Capacity[f]+over {
			t.Errorf("%d flows live, %d may", c.Live[f], c.Capacity[f])
		}
	}
	if c.Shed[ShedExpired] == 0 || c.Shed[ShedClosed] == 0 || c.Shed[ShedUnreplied] == 0 || c.Shed[ShedHalfOpen] == 0 {
		t.Errorf("not all kinds were shed: %v", c.Shed)
	}
	t.Logf("%+v", c)
}
