package flowtable

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
)

var sizes = []uint32{1_000, 100_000, 1_000_000}

// benchTable returns a table with n UDP flows in it, full.
func benchTable(b *testing.B, n uint32, v6 bool) (*Table, *Handle, []header.Tuple) {
	c := Config{IPv4Flows: n, Timeouts: DefaultTimeouts()}
	if v6 {
		c.IPv4Flows, c.IPv6Flows = 0, n
	}
	size, err := Size(c)
	if err != nil {
		b.Fatal(err)
	}
	tb, err := New(benchMemory(b, size), c)
	if err != nil {
		b.Fatal(err)
	}
	h, err := tb.Register()
	if err != nil {
		b.Fatal(err)
	}
	tuples := make([]header.Tuple, n)
	for i := range n {
		if i%64 == 0 {
			h.Enter(bootTime)
		}
		f := newFlow(header.ProtoUDP, v6, i)
		r := h.mustCreate(b, bootTime, f)
		tuples[i] = f.Client
		if i&1 == 1 {
			tuples[i] = h.reply(r)
		}
	}
	return tb, h, tuples
}

// shuffled returns the i-th index of an order that no prefetcher predicts.
func shuffled(i, n int) int { return int(uint64(i) * 2654435761 % uint64(n)) }

func BenchmarkLookup(b *testing.B) {
	for _, n := range sizes {
		for _, v6 := range []bool{false, true} {
			b.Run(fmt.Sprintf("v6=%v/flows=%d", v6, n), func(b *testing.B) {
				_, h, tuples := benchTable(b, n, v6)
				b.Run("hit", func(b *testing.B) { benchLookup(b, h, tuples, 1, false) })
				b.Run("hit-batch64", func(b *testing.B) { benchLookup(b, h, tuples, 64, false) })
				b.Run("hit-batch64-flows", func(b *testing.B) { benchLookup(b, h, tuples, 64, true) })
				for i := range tuples {
					tuples[i].Dst[12] ^= 0x55
				}
				b.Run("miss", func(b *testing.B) { benchLookup(b, h, tuples, 1, false) })
				b.Run("miss-batch64", func(b *testing.B) { benchLookup(b, h, tuples, 64, false) })
			})
		}
	}
}

// benchLookup looks up in batches, as the worker does: hash and fetch all, then look up all; with
// flows, it fetches the records in between. A packet's tuple is in the cache when the packet is
// looked up, so the tuples of a batch are copied before.
func benchLookup(b *testing.B, h *Handle, tuples []header.Tuple, batch int, flows bool) {
	const window = 1 << 14 // few enough that the tuples themselves stay in cache
	var search [64]Search
	var sink uint64
	work := make([]header.Tuple, window)
	at, left := 0, 0
	for b.Loop() {
		if left == 0 {
			b.StopTimer()
			for i := range work {
				work[i] = tuples[shuffled(at, len(tuples))]
				at++
			}
			left = window
			b.StartTimer()
		}
		left -= 64
		part := work[left : left+64]
		for i := 0; i < 64; i += batch {
			for j := range batch {
				search[j].Plain = plainOf(&part[i+j])
			}
			h.FetchBuckets(search[:batch])
			if flows {
				h.FetchFlows(search[:batch])
			}
			for j := range batch {
				r, _ := h.Lookup(search[j].hash, &part[i+j], bootTime)
				sink += uint64(r)
				if r != 0 {
					sink += uint64(h.Flow(r).word())
				}
			}
		}
	}
	if sink == 1 {
		b.Log(sink)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/packet")
}

// BenchmarkTwoWorkers measures the advantage of a table without locks: two workers look up the same
// flows at once, as they do when a flow's two directions arrive on two queues. With a lock for each
// flow they would write lines that they otherwise only read.
func BenchmarkTwoWorkers(b *testing.B) {
	type lock struct {
		taken atomic.Uint32
		_     [60]byte
	}
	for _, flows := range []int{1, 1000} {
		for _, locked := range []bool{false, true} {
			b.Run(fmt.Sprintf("flows=%d/locked=%v", flows, locked), func(b *testing.B) {
				tb, _, tuples := benchTable(b, 1000, false)
				locks := make([]lock, flows)
				work := func(h *Handle) {
					h.Enter(bootTime)
					for i := range b.N {
						at := shuffled(i, flows)
						l, t := &locks[at].taken, &tuples[at]
						if locked {
							for !l.CompareAndSwap(0, 1) {
							}
						}
						r, _ := h.Lookup(h.Hash(t), t, bootTime)
						if locked {
							l.Store(0)
						}
						if r == 0 {
							b.Error("a flow is gone")
							return
						}
					}
				}
				var wg sync.WaitGroup
				b.ResetTimer()
				for range 2 {
					h, err := tb.Register()
					if err != nil {
						b.Fatal(err)
					}
					wg.Go(func() { work(h) })
				}
				wg.Wait()
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/packet")
			})
		}
	}
}

// BenchmarkCreate fills tables whose memory was never used, and then ends all flows. It measures
// the cost of making and ending one flow.
func BenchmarkCreate(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			_, h := testTable(b, n, 0)
			refs := make([]Ref, n)
			var create, end time.Duration
			for b.Loop() {
				start := time.Now()
				for i := range n {
					if i%64 == 0 {
						h.Enter(bootTime)
					}
					refs[i] = h.mustCreate(b, bootTime, newFlow(header.ProtoUDP, false, i))
				}
				created := time.Now()
				for i, r := range refs {
					if i%64 == 0 {
						h.Enter(bootTime)
					}
					h.Delete(r)
				}
				end += time.Since(created)
				create += created.Sub(start)
				for range 2 * n / maxReclaim {
					h.Enter(bootTime)
				}
			}
			total := float64(b.N) * float64(n)
			b.ReportMetric(float64(create.Nanoseconds())/total, "ns/create")
			b.ReportMetric(float64(end.Nanoseconds())/total, "ns/delete")
		})
	}
}

func BenchmarkSweep(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			_, h, _ := benchTable(b, n, false)
			var examined int
			for b.Loop() {
				e, _ := h.Sweep(bootTime, int(n))
				examined += e
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(examined), "ns/record")
		})
	}
}

// BenchmarkSweepStep measures the longest step of a worker that is late with the expiry of ten
// million flows, of which all, none or half are expired: the processor time of Enter and Sweep
// together, without the time of other processes.
func BenchmarkSweepStep(b *testing.B) {
	const flows = 10_000_000
	for _, expired := range []int{0, 50, 100} { // percent
		b.Run(fmt.Sprintf("expired=%d%%", expired), func(b *testing.B) {
			c := Config{IPv4Flows: flows, Timeouts: DefaultTimeouts()}
			size, err := Size(c)
			if err != nil {
				b.Fatal(err)
			}
			tb, err := New(benchMemory(b, size), c)
			if err != nil {
				b.Fatal(err)
			}
			h, err := tb.Register()
			if err != nil {
				b.Fatal(err)
			}
			h.MakeRings()
			now := bootTime + 3600*second
			for n := range uint32(flows) {
				born := now
				if int(n*2654435761>>16%100) < expired {
					born = bootTime
				}
				if n%64 == 0 {
					h.Enter(born)
				}
				h.mustCreate(b, born, newFlow(header.ProtoUDP, false, n))
			}
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var took []time.Duration
			for b.Loop() {
				for left := int(tb.positions()); left > 0 && len(took) < flows; {
					start := threadTime()
					h.Enter(now)
					examined, _ := h.Sweep(now, left)
					took = append(took, threadTime()-start)
					left -= examined
				}
			}
			slices.Sort(took)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "us/p50")
			b.ReportMetric(float64(took[len(took)*999/1000].Nanoseconds())/1000, "us/p99.9")
			b.ReportMetric(float64(took[len(took)-1].Nanoseconds())/1000, "us/longest")
		})
	}
}

// BenchmarkRefusedSYN measures the cost of a SYN at the half-open cap, when the search for an old
// flow finds one half-open flow in thousands, and that flow is young.
func BenchmarkRefusedSYN(b *testing.B) {
	_, h := sparseHalfOpen(b)
	n := newFlow(header.ProtoTCP, true, 1_000_000)
	for b.Loop() {
		if _, s := h.Create(bootTime, &n); s != HalfOpenLimit {
			b.Fatal(s)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	_, h := testTable(b, 1000, 0)
	r := h.mustCreate(b, bootTime, newFlow(header.ProtoTCP, false, 1))
	h.establish(r, bootTime)
	for b.Loop() {
		h.Observe(r, ClientSide, seg(ClientSide, header.TCPACK), bootTime)
	}
}

func BenchmarkRecover(b *testing.B) {
	const n = 1_000_000
	tb, _, _ := benchTable(b, n, false)
	c := Config{IPv4Flows: n, Timeouts: DefaultTimeouts()}
	for b.Loop() {
		_, rec, err := Recover(tb.mem, c, bootTime)
		if err != nil || rec.Recovered != n {
			b.Fatal(rec, err)
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/recover")
}

// BenchmarkHandles measures a worker's batch in a flood, 16 flows made and 16 ended, by two
// threads, for several numbers of registered participants: the cost of a batch must not grow with
// that number.
func BenchmarkHandles(b *testing.B) {
	for _, registered := range []int{2, 16, 64, 256} {
		b.Run(fmt.Sprint(registered), func(b *testing.B) {
			tb, own := testTable(b, 100_000, 0)
			own.Leave()
			handles := []*Handle{own}
			for len(handles) < registered {
				h, err := tb.Register()
				if err != nil {
					b.Fatal(err)
				}
				handles = append(handles, h)
			}
			const batches, batch = 2_000, 16
			for b.Loop() {
				var wg sync.WaitGroup
				for w := range 2 {
					h := handles[len(handles)-1-w]
					wg.Go(func() {
						for i := range uint32(batches) {
							h.Enter(bootTime)
							for k := range uint32(batch) {
								f := newFlow(header.ProtoUDP, false, uint32(w)<<20|i*batch+k)
								if r, s := h.Create(bootTime, &f); s == Created {
									h.Delete(r)
								}
							}
						}
						h.Leave()
					})
				}
				wg.Wait()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batches), "ns/batch")
			b.ReportMetric(0, "ns/op")
		})
	}
}
