package flowtable

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
)

// givesWay are flows of each kind but the expired ones, which the sweep ends: what happens to them
// when they are made, all of it givesWayAge before the table is under pressure.
var givesWay = []struct {
	kind  Shed
	proto uint8
	steps []step
}{
	{ShedClosed, header.ProtoTCP, []step{{ReplySide, tcpRST, 0}}},
	{ShedReset, header.ProtoTCP, []step{{ReplySide, tcpSYN | tcpACK, 0}, {ClientSide, tcpACK, 0},
		{ReplySide, tcpACK, 0}, {ReplySide, tcpRST, 0}}},
	{ShedUnreplied, header.ProtoUDP, nil},
	{ShedHalfOpen, header.ProtoTCP, nil},
	{ShedUnconfirmed, header.ProtoSCTP, []step{{ReplySide, tcpSYN | tcpACK, 0}, {ClientSide, tcpACK, 0}}},
	{ShedIdle, header.ProtoUDP, []step{{ReplySide, 0, 0}, {ClientSide, 0, 0}}},
}

const givesWayAge = 8 * second // less than what any of them lives

// fullTable has flows, of which as many as give is true for give way as one kind, and the others
// are established. If recovered, a process has died since, and no ring has any.
func fullTable(t testing.TB, flows uint32, kind Shed, give func(n uint32) bool, recovered bool) (*Table, *Handle) {
	c := Config{IPv4Flows: flows, HalfOpen: flows, Timeouts: DefaultTimeouts(), HashKey: testKey}
	tb, h := testTableOf(t, c)
	of := &givesWay[kind-ShedClosed]
	for n := range flows {
		if n%64 == 0 {
			h.Enter(bootTime)
		}
		if !give(n) {
			h.establish(h.mustCreate(t, bootTime, newFlow(header.ProtoTCP, false, n)), bootTime)
			continue
		}
		r := h.mustCreate(t, bootTime, newFlow(of.proto, false, n))
		for _, s := range of.steps {
			h.Observe(r, s.side, seg(s.side, s.flags), bootTime)
		}
	}
	if recovered {
		var err error
		if tb, _, err = Recover(tb.mem, c, bootTime+second); err != nil {
			t.Fatal(err)
		}
		if h, err = tb.Register(); err != nil {
			t.Fatal(err)
		}
	}
	h.Enter(bootTime + givesWayAge)
	return tb, h
}

// part of a table that gives way.
type part struct {
	name    string
	percent float64
	give    func(n, flows uint32) bool
}

var parts = []part{
	{"14 % behind the established", 14, func(n, flows uint32) bool { return n >= flows/100*86 }},
	{"14 % mixed", 14, func(n, _ uint32) bool { return n*2654435761>>16%100 < 14 }},
	{"1 % first", 1, func(n, flows uint32) bool { return n < flows/100 }},
	{"1 % in the middle", 1, func(n, flows uint32) bool { return n >= flows/2 && n < flows/2+flows/100 }},
	{"1 % scattered", 1, func(n, _ uint32) bool { return n*2654435761>>16%100 == 0 }},
	{"each hundredth", 1, func(n, _ uint32) bool { return n%100 == 0 }},
}

// TestFullTableAdmits: where one flow in a hundred gives way, 99 % of new flows find room, whatever
// gives way and wherever it is, in a bounded number of records. Nothing else ends.
func TestFullTableAdmits(t *testing.T) {
	for _, p := range parts {
		flows, newcomers := uint32(100_000), uint32(200)
		if p.percent > 1 {
			flows, newcomers = 1_048_000/scale(), 1000
		}
		for _, of := range givesWay {
			for _, recovered := range []bool{false, true} {
				if p.name != "1 % scattered" && of.kind != ShedClosed {
					continue
				}
				name := fmt.Sprintf("%s, %v, recovered %v", p.name, of.kind, recovered)
				t.Run(name, func(t *testing.T) {
					give := func(n uint32) bool { return p.give(n, flows) }
					tb, h := fullTable(t, flows, of.kind, give, recovered)
					now, refused, most := bootTime+givesWayAge, 0, 0
					for n := range newcomers {
						now += Time(10 * time.Microsecond)
						h.Enter(now)
						h.hunt.begin()
						f := newFlow(header.ProtoTCP, false, flows+n)
						if r, s := h.Create(now, &f); s == Created {
							h.establish(r, now)
						} else {
							refused++
						}
						most = max(most, h.hunt.examined())
					}
					if refused > int(newcomers/100) {
						t.Errorf("%d of %d new flows refused", refused, newcomers)
					}
					if most > maxExamined {
						t.Errorf("%d records examined for one flow", most)
					}
					if c := tb.Counts(); c.Shed[of.kind] != uint64(int(newcomers)-refused) {
						t.Errorf("%d made, shed %v", int(newcomers)-refused, c.Shed)
					}
					validate(t, tb)
				})
			}
		}
	}
}

// TestEstablishedFirst: a table nine tenths of which are established connections gets a flood of
// new flows of all kinds, more than it can hold, by two handles. Each connection stays, and is
// found; the work for each new flow is bounded.
func TestEstablishedFirst(t *testing.T) {
	flows := uint32(200_000) / scale()
	tb, h := testTable(t, flows, 0)
	second, err := tb.Register()
	if err != nil {
		t.Fatal(err)
	}
	established := flows / 10 * 9
	for n := range established {
		if n%64 == 0 {
			h.Enter(bootTime)
		}
		h.establish(h.mustCreate(t, bootTime, newFlow(header.ProtoTCP, false, n)), bootTime)
	}
	rnd, now := rand.New(rand.NewPCG(testSeed(t), 5)), bootTime
	most, made := 0, uint64(0)
	for n := range 5 * flows {
		h := []*Handle{h, second}[n/32%2]
		if n%32 == 0 {
			now += Time(20 * time.Microsecond) // 1.6 million a second
			h.Enter(now)
		}
		f := newFlow([]uint8{header.ProtoTCP, header.ProtoUDP}[rnd.IntN(2)], false, established+n)
		h.hunt.begin()
		r, s := h.Create(now, &f)
		most = max(most, h.hunt.examined())
		if s == Created {
			made++
			for range rnd.IntN(2) {
				h.Observe(r, ReplySide, seg(ReplySide, []uint8{tcpSYN | tcpACK, tcpRST}[rnd.IntN(2)]), now)
			}
		}
	}
	// Of one search: a flow may need one at the half-open cap, and one in the full table.
	if most > maxExamined {
		t.Errorf("%d records examined for one flow", most)
	}
	c := tb.Counts()
	if c.States[Established] != uint64(established) {
		t.Errorf("%d of %d connections left", c.States[Established], established)
	}
	for n := range established {
		f := newFlow(header.ProtoTCP, false, n)
		if r, _ := h.lookup(&f.Client, now); r == 0 {
			t.Fatalf("connection %d is gone", n)
		}
	}
	t.Logf("%d of %d new flows made, shed %v, refused %v; %d records examined for one at most", made, 5*flows, c.Shed,
		c.Refused, most)
	validate(t, tb)
}

// BenchmarkFullTable is what a new flow costs in a full table, by what gives way: the median, and
// the slowest of a hundred.
func BenchmarkFullTable(b *testing.B) {
	const flows = 1_048_000
	for _, p := range parts {
		for _, recovered := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s, recovered %v", p.name, recovered), func(b *testing.B) {
				give := func(n uint32) bool { return p.give(n, flows) }
				_, h := fullTable(b, flows, ShedClosed, give, recovered)
				now, n, examined := bootTime+givesWayAge, uint32(flows), 0
				var took []time.Duration
				for b.Loop() {
					if len(took) == flows/1000 {
						continue // so many that the part which gives way is what it was
					}
					if now += Time(time.Microsecond); n%32 == 0 {
						h.Enter(now)
					}
					f := newFlow(header.ProtoTCP, false, n)
					n++
					start := time.Now()
					r, s := h.Create(now, &f)
					took = append(took, time.Since(start))
					if examined += h.hunt.examined(); s == Created {
						h.establish(r, now)
					}
				}
				slices.Sort(took)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "ns/p50")
				b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "ns/p99")
				b.ReportMetric(float64(examined)/float64(len(took)), "records/create")
			})
		}
	}
}
