package asavie

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

const (
	frameSize, ringSize = 2048, 2048

	window  = 1024 // packets that wait in the receive ring when the clock starts
	windows = 16   // per round
)

var (
	frames = flag.Int("frames", 8192, "frames of each UMEM, a power of two from 4096")
	batch  = flag.Int("batch", 64, "packets that the forwarder takes at once")
)

// layer is one way to forward: packets come in on in and leave on out.
type layer struct {
	name    string
	in, out fastpath.Link
	pools   []*fastpath.Pool // of in, and of out if it has a UMEM of its own
	// cross turns packets of in into packets of out.
	cross    func(batch []fastpath.Desc) []fastpath.Desc
	syscalls func() uint64
	close    func() error
}

// round is what one layer did to windows * window packets.
type round struct {
	sent, lost, duplicated int
	busy                   time.Duration // CPU time of the forwarder, not the generator
	syscalls               uint64
}

// shape is where packets leave.
type shape struct {
	name string
	hair bool // on the device they came from
}

// BenchmarkCompare forwards the same packets with both layers, in turn, over
// veth, through the same loop. One iteration is a round of each:
//
//	go test ./bench/asavie -run '^$' -bench Compare -benchtime 15x
//
// The generator fills the receive ring with the clock stopped. What is timed is the
// forwarder's loop, in CPU time of its thread, in which the kernel's copying, sending and
// delivery to the peer is.
func BenchmarkCompare(b *testing.B) {
	openers := []func(testing.TB, shape, []*xsktest.Wire) *layer{openXSK, openPlain, openDrained}
	results := map[string][]round{}
	var rows []string
	for b.Loop() {
		for _, s := range []shape{{"one device", true}, {"two devices", false}} {
			for _, open := range openers {
				row, r := runRound(b, s, open)
				if results[row] == nil {
					rows = append(rows, row)
				}
				results[row] = append(results[row], r)
			}
		}
	}
	report(b, rows, results)
}

// scope is a testing.TB that cleans up at the end of a round.
type scope struct {
	testing.TB
	cleanups []func()
}

func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scope) end() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
}

// runRound has a thread, a namespace and devices of its own.
func runRound(b *testing.B, s shape, open func(testing.TB, shape, []*xsktest.Wire) *layer) (row string, r round) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		tb := &scope{TB: b}
		defer tb.end()
		xsktest.EnterNamespace(tb)
		wires := []*xsktest.Wire{xsktest.NewWire(tb, "sl0", "sl0p"), xsktest.NewWire(tb, "sl1", "sl1p")}
		l := open(tb, s, wires)
		sink := wires[0]
		if !s.hair {
			sink = wires[1]
		}
		row = s.name + "\t" + l.name
		r = l.measure(tb, wires[0], sink)
		if err := l.close(); err != nil {
			b.Error(err)
		}
	}()
	if <-done; b.Failed() {
		b.FailNow()
	}
	return row, r
}

// measure sends all windows through the layer.
func (l *layer) measure(tb testing.TB, source, sink *xsktest.Wire) round {
	seen := make(map[uint64]int, windows*window)
	descs := make([]fastpath.Desc, *batch)
	r := round{sent: windows * window}
	before := l.syscalls()
	for w := range uint64(windows) {
		source.Send(tb, w*window, (w+1)*window)
		start := cpuTime(tb)
		for forwarded, idle := 0, 0; forwarded < window && idle < 1000; {
			n := l.step(descs)
			if forwarded += n; n == 0 {
				idle++
			}
		}
		r.busy += cpuTime(tb) - start
		sink.Receive(tb, seen)
	}
	r.syscalls = l.syscalls() - before
	// What is under way arrives; what is stranded does not.
	for deadline := time.Now().Add(20 * time.Millisecond); time.Now().Before(deadline) && len(seen) < r.sent; {
		sink.Receive(tb, seen)
		runtime.Gosched()
	}
	r.lost = r.sent - len(seen)
	for _, times := range seen {
		r.duplicated += times - 1
	}
	return r
}

// cpuTime is what this thread has used. Unlike a clock on the wall it does not run
// while other programs have the core.
func cpuTime(tb testing.TB) time.Duration {
	var ts unix.Timespec
	must(tb, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts))
	return time.Duration(ts.Nano())
}

// step is what a worker does, without the rewriting.
func (l *layer) step(descs []fastpath.Desc) int {
	in, out := l.pools[0], l.pools[len(l.pools)-1]
	l.out.Complete(out)
	l.in.Refill(in)
	n := l.in.Receive(descs)
	leaving := l.cross(descs[:n])
	sent := l.out.Transmit(leaving)
	for _, d := range leaving[sent:] {
		out.Put(d.Addr)
	}
	l.out.Flush()
	return n
}

func openXSK(tb testing.TB, s shape, wires []*xsktest.Wire) *layer {
	u, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: *frames, FrameSize: frameSize})
	must(tb, err)
	pool := fastpath.NewPool(*frames, frameSize)
	open := func(w *xsktest.Wire) *xsk.Socket {
		c := xsk.Config{Interface: w.Dev, UMEM: u, RxSize: ringSize, TxSize: ringSize, FillSize: ringSize,
			CompletionSize: ringSize}
		k, err := xsk.Open(tb.Context(), c)
		must(tb, err)
		return k
	}
	in := open(wires[0])
	out, all := in, []*xsk.Socket{in}
	if !s.hair {
		out = open(wires[1])
		all = append(all, out)
	}
	in.Refill(pool)
	wires[0].Redirect(tb, 0, in.FD())
	return &layer{
		name: "fastpath/xsk", in: in, out: out, pools: []*fastpath.Pool{pool},
		cross:    func(batch []fastpath.Desc) []fastpath.Desc { return batch },
		syscalls: func() uint64 { return out.Counters().Kicks },
		close: func() error {
			for _, k := range all {
				must(tb, k.Close(pool))
			}
			if pool.Free() != *frames {
				tb.Errorf("%d of %d frames at the end", pool.Free(), *frames)
			}
			return u.Close()
		},
	}
}

func openPlain(tb testing.TB, s shape, wires []*xsktest.Wire) *layer {
	return openAsavie(tb, s, wires, "asavie/xdp", false)
}

func openDrained(tb testing.TB, s shape, wires []*xsktest.Wire) *layer {
	return openAsavie(tb, s, wires, "asavie/xdp, ring drained by the caller", true)
}

func openAsavie(tb testing.TB, s shape, wires []*xsktest.Wire, name string, drain bool) *layer {
	open := func(w *xsktest.Wire) *Link {
		dev, err := netlink.LinkByName(w.Dev)
		must(tb, err)
		k, err := Open(Config{IfIndex: dev.Attrs().Index, Frames: *frames, FrameSize: frameSize, RingSize: ringSize,
			Drain: drain})
		must(tb, err)
		return k
	}
	in := open(wires[0])
	l := &layer{name: name, in: in, out: in, pools: []*fastpath.Pool{fastpath.NewPool(*frames, frameSize)}}
	l.cross = func(batch []fastpath.Desc) []fastpath.Desc { return batch }
	l.syscalls, l.close = in.Syscalls, in.Close
	if !s.hair {
		out := open(wires[1])
		l.out, l.syscalls = out, out.Syscalls
		l.pools = append(l.pools, fastpath.NewPool(*frames, frameSize))
		l.cross = copying(in, out, l.pools[0], l.pools[1])
		l.close = func() error { return cmp.Or(in.Close(), out.Close()) }
	}
	in.Refill(l.pools[0])
	wires[0].Redirect(tb, 0, in.FD())
	return l
}

// copying moves packets between UMEMs, as sockets that cannot share one have to.
func copying(in, out *Link, inPool, outPool *fastpath.Pool) func([]fastpath.Desc) []fastpath.Desc {
	return func(batch []fastpath.Desc) []fastpath.Desc {
		n := 0
		for _, d := range batch {
			if addr, ok := outPool.Get(); ok {
				to := fastpath.Desc{Addr: addr, Len: d.Len}
				copy(out.Packet(to), in.Packet(d))
				inPool.Put(d.Addr)
				batch[n] = to
				n++
				continue
			}
			inPool.Put(d.Addr)
		}
		return batch[:n]
	}
}

// report prints medians over the rounds.
func report(b *testing.B, rows []string, results map[string][]round) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nforward\tlayer\trounds\tMpps/core\tns/packet\tlost\tduplicated\tsyscalls/packet\n")
	for _, row := range rows {
		rs := results[row]
		rate := median(rs, func(r round) float64 { return float64(r.sent-r.lost) / r.busy.Seconds() / 1e6 })
		fmt.Fprintf(w, "%s\t%d\t%.3f\t%.0f\t%.2f %%\t%.0f\t%.4f\n", row, len(rs), rate, 1e3/rate,
			median(rs, func(r round) float64 { return 100 * float64(r.lost) / float64(r.sent) }),
			median(rs, func(r round) float64 { return float64(r.duplicated) }),
			median(rs, func(r round) float64 { return float64(r.syscalls) / float64(r.sent-r.lost) }))
	}
	if err := w.Flush(); err != nil {
		b.Error(err)
	}
	b.ReportMetric(0, "ns/op") // a round has no meaning of its own
}

func median(rs []round, of func(round) float64) float64 {
	v := make([]float64, len(rs))
	for i, r := range rs {
		v[i] = of(r)
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
