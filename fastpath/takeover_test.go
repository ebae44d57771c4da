package fastpath_test

import (
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// ownFrames returns the frames that no link of a paused worker has.
func ownFrames(g *gate, r *fastpath.Remains) (frames []uint64) {
	for {
		addr, ok := g.Pool().Get()
		if !ok {
			break
		}
		frames = append(frames, addr)
	}
	g.Pool().PutAll(frames)
	note := func(b fastpath.Buffers) {
		for _, d := range b {
			frames = append(frames, d.Addr)
		}
	}
	for _, p := range r.Hops {
		note(p.Buffers)
	}
	for _, p := range r.Parked {
		note(p.Buffers)
	}
	for _, p := range r.Fragments {
		note(p.Buffers)
	}
	return frames
}

// successor returns a worker with the same links, before Assume.
func (l *lab) successor(g *gate) *gate {
	next := &gate{nic: g.nic, host: g.host, other: g.other, stats: new(stats.Block), config: g.config}
	next.stats.Backends.Ensure(128)
	next.config.Stats, next.config.Pool = next.stats, fastpath.NewPoolOf(frames, frameSize, nil)
	next.config.Chains = fastpath.NewChains(frames, frameSize)
	var err error
	if next.Worker, err = fastpath.New(next.config); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(next.Close)
	return next
}

// TestWorkerTakesOver: a worker takes over the frames, links and held packets of another one.
// Packets that wait for a next hop leave when it is known, held fragments leave when their first
// one arrives, and the counts continue.
func TestWorkerTakesOver(t *testing.T) {
	l := newLab(t, labConfig{edit: unresolved})
	g := l.workers[0]
	for range 3 {
		l.send(0, headertest.UDP(join(client4, 5), join(vip4, 99), "x"))
	}
	datagram := headertest.UDP(join(client4, 40000), join(vip4, 53), string(make([]byte, 2000))).Bytes()
	parts := headertest.Split(datagram, 1400, 7)
	inject := func(part []byte) {
		if !g.nic.Inject(part) {
			t.Fatal("link full")
		}
		l.step(2 * time.Millisecond)
	}
	inject(parts[1])
	if g.stats.Held.Load() != 4 {
		t.Fatalf("%d held, want 4", g.stats.Held.Load())
	}
	before, dropped := g.stats.Rx.Load(), g.stats.Dropped()

	r := g.Pause()
	g.nic.Inject(headertest.UDP(join(client4, 6), join(vip4, 53), "y").Bytes())
	l.step(time.Millisecond)
	if g.stats.Rx.Load() != before {
		t.Fatal("a paused worker received")
	}
	next := l.successor(g)
	if err := next.Assume(r, ownFrames(g, &r)); err != nil {
		t.Fatal(err)
	}
	l.workers[0] = next
	l.resolve("10.0.9.1")
	l.step(2 * time.Millisecond) // Validate checks both laws in each step
	for range 4 {                // three held packets, and one from the ring
		l.out(next.nic)
	}
	inject(parts[0])
	l.step(2 * time.Millisecond)
	for range 2 {
		if _, ok := next.nic.Take(nil); !ok {
			t.Fatalf("a fragment is missing; drops %v", l.drops())
		}
	}
	if n := next.stats.Held.Load(); n != 0 {
		t.Errorf("%d held", n)
	}
	if rx := next.stats.Rx.Load(); rx != before+2 || next.stats.Dropped() != dropped {
		t.Errorf("%d received, %d dropped, before %d and %d", rx, next.stats.Dropped(), before, dropped)
	}
	if total, accounted := next.stats.FrameLaw(); total != accounted {
		t.Errorf("%d frames of %d", accounted, total)
	}
}

// TestMoreParkedThanFits: a worker takes over packets that wait to open a flow and SYN-ACKs that
// wait for copies, which are more than it parks. It drops the oldest, as it does in a flood.
func TestMoreParkedThanFits(t *testing.T) {
	const answers, fit = 40, frames / 4
	l, _ := groupLab(t, labConfig{})
	g := l.workers[0]
	for port := range uint16(answers) {
		l.openBy(1000 + port)
	}
	for n := range 2 * fastpath.BatchSize {
		l.inject(opener(n))
		if n%fastpath.BatchSize == fastpath.BatchSize-1 {
			l.step(0)
			g.nic.Loop()
		}
	}
	r := g.Pause()
	before := r.Counts["drop "+reason.NewFlowDisplaced.String()]
	more := len(r.Parked) - fit
	if more <= 0 || more > answers {
		t.Fatalf("%d packets are handed over, want more than %d", len(r.Parked), fit)
	}
	next := l.successor(g)
	if err := next.Assume(r, ownFrames(g, &r)); err != nil {
		t.Fatal(err)
	}
	l.workers[0] = next
	l.step(0) // Validate checks both laws
	l.wantDrop(reason.NewFlowDisplaced, before+uint64(more))
	sent := 0
	for range 20 { // the SYN-ACKs are the youngest
		l.step(2 * time.Millisecond)
		for frame, ok := next.nic.Take(nil); ok; frame, ok = next.nic.Take(nil) {
			var p header.Packet
			if r := header.Parse(frame, &p); r != reason.None {
				t.Fatal(r)
			}
			if src, _ := ends(&p.Tuple); src.String() == join(vip4, 80) {
				sent++
			}
		}
	}
	if sent != answers || next.stats.Held.Load() != 0 {
		t.Errorf("%d SYN-ACKs were sent, want %d; %d packets are held", sent, answers, next.stats.Held.Load())
	}
	if total, accounted := next.stats.FrameLaw(); total != accounted {
		t.Errorf("%d frames of %d", accounted, total)
	}
}

// TestPauseEnds: a worker that resumes has lost no packet.
func TestPauseEnds(t *testing.T) {
	l := newLab(t, labConfig{edit: unresolved})
	g := l.workers[0]
	l.send(0, headertest.UDP(join(client4, 5), join(vip4, 99), "x"))
	g.Pause()
	g.nic.Inject(headertest.UDP(join(client4, 5), join(vip4, 53), "y").Bytes())
	l.step(time.Millisecond)
	l.nothing(g.nic)
	g.Resume()
	l.resolve("10.0.9.1")
	l.step(2 * time.Millisecond)
	l.out(g.nic)
	l.out(g.nic)
}

// TestAssumeRefusesCounts: Assume returns an error for inconsistent counts and frames.
func TestAssumeRefusesCounts(t *testing.T) {
	for name, change := range map[string]func(*fastpath.Remains, *[]uint64){
		"an unknown count":   func(r *fastpath.Remains, _ *[]uint64) { r.Counts["drop of another version"] = 1 },
		"a frame too few":    func(_ *fastpath.Remains, f *[]uint64) { *f = (*f)[1:] },
		"a frame of a link":  func(r *fastpath.Remains, f *[]uint64) { r.Hops[0].Buffers[0].Addr = 1 << 40 },
		"a packet too short": func(r *fastpath.Remains, f *[]uint64) { r.Hops[0].Buffers[0].Len = 0 },
		"a packet of none":   func(r *fastpath.Remains, f *[]uint64) { r.Hops[0].Buffers = nil },
		"a frame twice":      func(r *fastpath.Remains, f *[]uint64) { r.Hops = append(r.Hops, r.Hops[0]) },
	} {
		l := newLab(t, labConfig{edit: unresolved})
		g := l.workers[0]
		l.send(0, headertest.UDP(join(client4, 5), join(vip4, 99), "x"))
		r := g.Pause()
		list := ownFrames(g, &r)
		change(&r, &list)
		if err := l.successor(g).Assume(r, list); err == nil {
			t.Errorf("%s: assumed", name)
		}
	}
}

// TestCountsContinue: every counter of a Block continues in the worker that takes over.
func TestCountsContinue(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	r := g.Pause()
	drops := uint64(0)
	for name := range r.Counts {
		r.Counts[name] = 1000
		if strings.HasPrefix(name, "drop ") {
			drops++
		}
	}
	r.Counts["rx"] = (drops + 1) * 1000 // the packet law
	next := l.successor(g)
	if err := next.Assume(r, ownFrames(g, &r)); err != nil {
		t.Fatal(err)
	}
	l.workers[0] = next
	l.step(0)
	others := []string{"Polls", "BusyNanos", "IdleNanos", // of workers.Group, which has them in its Custody
		"Began", "BusyBefore", "Generation", "LoopTick",
		"FramesTotal", "FramesFree", "FramesLinks", "FramesHeld"} // no counters
	block := reflect.ValueOf(next.stats).Elem()
	for i := range block.NumField() {
		name := block.Type().Field(i).Name
		if name == "_" {
			continue
		}
		switch v := block.Field(i).Addr().Interface().(type) {
		case *atomic.Uint64:
			if v.Load() == 0 && !slices.Contains(others, name) {
				t.Errorf("%s begins at 0", name)
			}
		case *[reason.Count]atomic.Uint64:
			for i := range v {
				if v[i].Load() == 0 {
					t.Errorf("%s: %v begins at 0", name, reason.Drop(i))
				}
			}
		}
	}
}
