package loop_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/nat/header"
)

// rig is a Loop with fakes around it, in a synctest bubble.
type rig struct {
	*loop.Loop
	tracker *tracker.Tracker
	kernel  *controltest.Kernel
	flows   *flows
	feed    *feed
	handle  services.Handle
	worker  stats.Block
	end     context.CancelFunc
	ended   chan struct{}
}

type flows struct {
	used  atomic.Pointer[[]services.FrontendKey]
	addrs atomic.Pointer[steer.OwnAddr]
	ports atomic.Pointer[steer.PortSet] // that replies come to
	asked atomic.Int32
}

func (f *flows) InUse(s *steer.Set) (used steer.Set) {
	f.asked.Add(1)
	for _, k := range s.Frontends {
		if now := f.used.Load(); now != nil && slices.Contains(*now, k) {
			used.Frontends = append(used.Frontends, k)
		}
	}
	for _, a := range s.Addrs {
		if now := f.addrs.Load(); now != nil && now.Addr == a.Addr && now.Flags&a.Flags != 0 {
			used.Addrs = append(used.Addrs, steer.OwnAddr{Addr: a.Addr, Flags: now.Flags & a.Flags})
		}
	}
	used.Replies = s.Replies.In(f.ports.Load())
	return used
}

type feed struct{ err atomic.Pointer[error] }

func (f *feed) Source() objects.Source { return objects.Source{Kind: "test"} }

func (f *feed) Sync(context.Context) error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

func newRig(t *testing.T, change func(*rig, *loop.Config)) *rig {
	r := &rig{tracker: tracker.New(), kernel: controltest.NewKernel(), flows: &flows{}, feed: &feed{}}
	r.worker.Generation.Store(stats.Offline)
	cfg := loop.Config{
		Log: slog.New(slog.DiscardHandler), Tracker: r.tracker, Compiler: compiler.New(controltest.Config()),
		Publisher: loop.NewPublisher(&r.handle, []*stats.Block{&r.worker}), Steering: r.kernel,
		Feeds: []tracker.Feed{r.feed}, Window: time.Millisecond,
	}
	if change != nil {
		change(r, &cfg)
	}
	r.Loop = loop.New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	r.end = cancel
	r.ended = make(chan struct{})
	go func() {
		defer close(r.ended)
		r.Run(ctx)
	}()
	synctest.Wait()
	return r
}

func (r *rig) add(i int) {
	var b tracker.Batch
	b.Upsert(objects.Source{Kind: "test"}, controltest.Service(i))
	b.Upsert(objects.Source{Kind: "test"}, controltest.Slice(i, 0))
	r.tracker.Apply(&b)
	r.settle()
}

func (r *rig) remove(i int) {
	r.tracker.Delete(objects.Source{Kind: "test"}, objects.ObjectID{Kind: objects.KindService, Namespace: "bench",
		Name: fmt.Sprintf("service-%d", i)})
	r.settle()
}

// settle lets the loop's window pass and its work be done.
func (r *rig) settle() {
	time.Sleep(10 * time.Millisecond) // of the bubble's clock
	synctest.Wait()
}

func vipKey(i int) services.FrontendKey {
	return services.FrontendKey{Addr: header.AddrFrom4([4]byte{203, 0, byte(i), 1}), Port: 80, Proto: header.ProtoTCP}
}

func TestNothingIsPublishedBeforeFeedsSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		missing := errors.New("no such directory")
		r := newRig(t, func(r *rig, _ *loop.Config) { r.feed.err.Store(&missing) })
		r.add(1)
		if r.handle.Load() != nil || len(r.kernel.Log) > 0 {
			t.Fatal("published or steered before the source was read")
		}
		if s := r.Status(); s.Sources[0].Synced || s.Sources[0].Error == "" || s.Applied != 0 {
			t.Errorf("status %+v", s)
		}
		r.feed.err.Store(nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		<-r.Ready()
		if _, ok := r.handle.Load().FrontendByKey(vipKey(1)); !ok || !r.kernel.Frontends[vipKey(1)] {
			t.Error("not published and steered after the source was read")
		}
		if s := r.Status(); !s.Sources[0].Synced || !s.Sources[0].Applied || s.Sources[0].Objects != 2 ||
			s.Applied != s.Read {
			t.Errorf("status %+v", s)
		}
		r.end()
	})
}

func TestManyChangesAreOneSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		before := r.handle.Load().Generation
		for i := range 100 {
			r.tracker.Upsert(objects.Source{Kind: "test"}, controltest.Service(i))
		}
		r.settle()
		if got := r.handle.Load().Generation - before; got > 2 {
			t.Errorf("100 changes in one window made %d snapshots", got)
		}
		if r.worker.Backends.At(0) != nil {
			t.Error("counters without a backend")
		}
		r.add(1)
		if r.worker.Backends.At(9) == nil {
			t.Error("no counters for published backends")
		}
		r.end()
	})
}

// TestOrderOfOpeningAndClosing looks, from inside the kernel's calls, at what is
// published at that moment: addresses are open before, frontends after.
func TestOrderOfOpeningAndClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		r := newRig(t, func(r *rig, cfg *loop.Config) {
			cfg.Steering = watched{r.kernel, func(call string, set *steer.Set) {
				published := false
				if s := r.handle.Load(); s != nil {
					_, published = s.FrontendByKey(vipKey(1))
				}
				seen = append(seen, fmt.Sprintf("%s addrs=%d frontends=%d published=%v", call, len(set.Addrs),
					len(set.Frontends), published))
			}}
		})
		r.add(1)
		r.remove(1)
		want := []string{
			"replace addrs=2 frontends=0 published=false",
			"open addrs=1 frontends=0 published=false",
			"open addrs=0 frontends=1 published=true",
			"close addrs=1 frontends=1 published=true",
		}
		if !slices.Equal(seen, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(seen, "\n"), strings.Join(want, "\n"))
		}
		r.end()
	})
}

type watched struct {
	*controltest.Kernel
	see func(call string, set *steer.Set)
}

func (w watched) Replace(s *steer.Set) error {
	w.see("replace", s)
	return w.Kernel.Replace(s)
}

func (w watched) Open(s *steer.Set) error {
	w.see("open", s)
	return w.Kernel.Open(s)
}

func (w watched) Close(s *steer.Set) error {
	w.see("close", s)
	return w.Kernel.Close(s)
}

func TestFlowsKeepAFrontendOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig, cfg *loop.Config) { cfg.Flows = r.flows })
		r.add(1)
		r.add(2)
		r.flows.used.Store(&[]services.FrontendKey{vipKey(1)})
		r.remove(1)
		r.remove(2)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if _, ok := r.handle.Load().FrontendByKey(vipKey(1)); ok {
			t.Error("the frontend still takes new flows")
		}
		if !r.kernel.Frontends[vipKey(1)] || r.kernel.Frontends[vipKey(2)] {
			t.Errorf("open are %v; want the one with flows and not the other", r.kernel.Frontends)
		}
		if s := r.Status(); s.Closing != 1 || s.Applied != s.Read {
			t.Errorf("closing %d, applied %d of %d", s.Closing, s.Applied, s.Read)
		}
		asked := r.flows.asked.Load()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := r.flows.asked.Load() - asked; n < 50 || n > 70 {
			t.Errorf("all flows were walked %d times in an hour, want about 60", n)
		}
		r.add(1) // wanted again before its flows ended
		r.flows.used.Store(nil)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if !r.kernel.Frontends[vipKey(1)] {
			t.Error("a frontend that is wanted again was closed")
		}
		r.remove(1)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if r.kernel.Frontends[vipKey(1)] || r.Status().Closing != 0 {
			t.Error("a frontend without flows stays open")
		}
		r.end()
	})
}

// TestFlowsKeepAnAddressFlag: an address that stays ours loses the flags that no flow needs, and
// keeps the others for as long as a flow needs them.
func TestFlowsKeepAnAddressFlag(t *testing.T) {
	const node, snat = services.AddrNode, services.AddrSNAT
	a, other := controltest.Config().SNAT4[0], controltest.Config().NodeAddresses[0]
	configure := func(t *testing.T, r *rig, nodes, sources []header.Addr) {
		t.Helper()
		if err := r.Configure(t.Context(), func(c *compiler.Config) {
			c.NodeAddresses, c.SNAT4 = nodes,
				sources
		}); err != nil {
			t.Fatal(err)
		}
	}
	wait := func() {
		time.Sleep(3 * time.Minute) // longer than the maximum interval of walks
		synctest.Wait()
	}
	both, one := []header.Addr{other, a}, []header.Addr{other}
	for _, tc := range []struct {
		name           string
		nodes, sources []header.Addr
		lost           services.AddrFlags
	}{
		{"the source moves", both, one, snat},
		{"node ports are narrowed", one, []header.Addr{a}, node},
		{"both", one, one, node | snat},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, func(r *rig, cfg *loop.Config) { cfg.Flows = r.flows })
				expect := func(when string, flags services.AddrFlags) {
					t.Helper()
					if got := r.kernel.Flags(a); got != flags {
						t.Errorf("%s: the kernel program has flags %#x, want %#x", when, got, flags)
					}
				}
				for _, needed := range []services.AddrFlags{node, snat, node | snat} {
					r.flows.addrs.Store(&steer.OwnAddr{Addr: a, Flags: needed})
					configure(t, r, tc.nodes, tc.sources)
					if got := r.handle.Load().Owned(a); got != (node|snat)&^tc.lost {
						t.Errorf("published with flags %#x", got)
					}
					expect("at once", node|snat)
					wait()
					expect("with flows", (node|snat)&^(tc.lost&^needed))
					configure(t, r, both, []header.Addr{a})
					wait()
					expect("added again", node|snat)
					configure(t, r, tc.nodes, tc.sources)
					r.flows.addrs.Store(nil)
					wait()
					expect("without flows", (node|snat)&^tc.lost)
					if s := r.Status(); s.Closing != 0 || s.Applied != s.Read {
						t.Errorf("closing %d, applied %d of %d", s.Closing, s.Applied, s.Read)
					}
					configure(t, r, both, []header.Addr{a})
				}
				r.end()
			})
		})
	}
}

// TestTakeOverKeepsAddressesOfFlows: while no daemon ran, a service was deleted, and the source
// address of its flows removed; another service without flows was deleted.
func TestTakeOverKeepsAddressesOfFlows(t *testing.T) {
	a := controltest.Config().NodeAddresses[0] // wanted as a node address, and no more as a source
	const node, snat = services.AddrNode, services.AddrSNAT
	start := func(t *testing.T, withFlows bool) *rig {
		return newRig(t, func(r *rig, cfg *loop.Config) {
			r.kernel.Frontends[vipKey(1)], r.kernel.Frontends[vipKey(2)] = true, true
			r.kernel.Ports[steer.NodePort{Proto: header.ProtoTCP, Port: 31000}] = true
			r.kernel.Addrs[vipKey(1).Addr], r.kernel.Addrs[vipKey(2).Addr], r.kernel.Addrs[a] = services.AddrVIP,
				services.AddrVIP, node|snat
			r.flows.used.Store(&[]services.FrontendKey{vipKey(1)})
			r.flows.addrs.Store(&steer.OwnAddr{Addr: a, Flags: snat})
			if withFlows {
				cfg.Flows = r.flows
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		r := start(t, true)
		<-r.Ready()
		k := r.kernel
		if !slices.Equal(k.Log, []string{"replace"}) {
			t.Errorf("calls %v", k.Log)
		}
		if !k.Frontends[vipKey(1)] || k.Frontends[vipKey(2)] || len(k.Ports) != 0 {
			t.Errorf("open are %v %v; want the frontend with flows and no other", k.Frontends, k.Ports)
		}
		if k.Addrs[a] != node|snat || k.Addrs[vipKey(2).Addr] != 0 {
			t.Errorf("addresses %v", k.Addrs)
		}
		if s := r.Status(); s.Closing != 2 || s.Applied != s.Read {
			t.Errorf("closing %d, applied %d of %d", s.Closing, s.Applied, s.Read)
		}
		asked := r.flows.asked.Load()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := r.flows.asked.Load() - asked; n < 50 || n > 70 {
			t.Errorf("all flows were walked %d times in an hour, want about 60", n)
		}
		r.flows.used.Store(nil)
		r.flows.addrs.Store(nil)
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		all := compiler.New(controltest.Config()).Steer()
		k.Equal(t, &all.Open)
		if n := r.Status().Closing; n != 0 {
			t.Errorf("closing %d after the last flow", n)
		}
		r.end()
	})
	t.Run("without flows", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, false)
			<-r.Ready()
			all := compiler.New(controltest.Config()).Steer()
			r.kernel.Equal(t, &all.Open)
			r.end()
		})
	})
	t.Run("added again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, true)
			r.add(1)
			r.flows.used.Store(nil)
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			if !r.kernel.Frontends[vipKey(1)] {
				t.Error("a frontend that is wanted again was closed")
			}
			r.end()
		})
	})
}

func TestSteeringIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		full, gone := errors.New("map is full"), errors.New("map is gone")
		r.kernel.Refuse.Store(&full)
		r.add(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := r.Wait(ctx); !errors.Is(err, full) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait: %v", err)
		}
		cancel()
		synctest.Wait()
		if s := r.Status(); s.SteeringError != "map is full" || s.Applied == s.Read {
			t.Errorf("status %+v", s)
		}
		r.kernel.Refuse.Store(nil)
		if err := r.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if !r.kernel.Frontends[vipKey(1)] || r.Status().SteeringError != "" {
			t.Error("not steered after the kernel gave in")
		}
		r.kernel.Refuse.Store(&gone)
		r.remove(1)
		r.kernel.Refuse.Store(nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if r.kernel.Frontends[vipKey(1)] {
			t.Error("not closed after the kernel gave in")
		}
		r.end()
	})
}

func TestWaitIncludesWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.worker.Generation.Store(1)
		r.add(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Wait(ctx); err == nil {
			t.Error("Wait returned while a worker uses an old snapshot")
		}
		r.worker.Generation.Store(r.handle.Load().Generation)
		if err := r.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		r.end()
		synctest.Wait()
		if err := r.Wait(t.Context()); err != nil && !errors.Is(err, loop.ErrEnded) {
			t.Errorf("Wait after the end: %v", err)
		}
		if _, err := r.Drain(t.Context(), compiler.Drain{}); !errors.Is(err, loop.ErrEnded) {
			t.Errorf("Drain after the end: %v", err)
		}
	})
}

// TestIndexesAreReleased: indexes of a deleted Service are released once no worker uses a snapshot
// with it, whether or not anything else changes.
func TestIndexesAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		owners := controltest.NewOwners(t)
		r := newRig(t, func(_ *rig, cfg *loop.Config) { cfg.Compiler.Watch(owners) })
		r.add(1)
		r.worker.Generation.Store(r.handle.Load().Generation)
		r.remove(1)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(owners.Known) != controltest.Large.Endpoints {
			t.Errorf("%d refs are known while a worker uses them, want %d", len(owners.Known),
				controltest.Large.Endpoints)
		}
		r.worker.Generation.Store(stats.Offline)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(owners.Known) != 0 {
			t.Errorf("%d refs are known after the last worker left", len(owners.Known))
		}
		r.end()
	})
}

func TestDrainByRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.add(1)
		d := compiler.Drain{Addr: header.AddrFrom4([4]byte{10, 0, 0, 10})}
		set := func() int {
			f, _ := r.handle.Load().FrontendByKey(vipKey(1))
			return len(f.Outside.Set.Backends)
		}
		var saved []compiler.Drain
		r.SaveDrains = func(list []compiler.Drain) error { saved = list; return nil }
		if n, err := r.Drain(t.Context(), d); n != 1 || err != nil || set() != 9 {
			t.Errorf("drained %d, %v; %d take new flows", n, err, set())
		}
		if !slices.Equal(saved, []compiler.Drain{d}) {
			t.Errorf("saved %v, want %v", saved, d)
		}
		if _, err := r.Drain(t.Context(),
			compiler.Drain{Addr: header.AddrFrom4([4]byte{10, 99, 99, 99})}); !errors.Is(err,
			compiler.ErrUnknownBackend) {
			t.Errorf("drain of nobody: %v", err)
		}
		if n, err := r.Undrain(t.Context(), d); n != 1 || err != nil || set() != 10 {
			t.Errorf("undrained %d, %v; %d take new flows", n, err, set())
		}
		if len(saved) > 0 {
			t.Errorf("saved %v after it was undrained", saved)
		}
		if _, err := r.Undrain(t.Context(), d); !errors.Is(err, compiler.ErrNotDrained) {
			t.Errorf("undrain twice: %v", err)
		}
		if err := r.Configure(t.Context(), func(c *compiler.Config) { c.NodeAddresses = nil }); err != nil {
			t.Error(err)
		}
		if flags := r.handle.Load().Owned(addr4(192, 0, 2, 10)); flags&services.AddrNode != 0 {
			t.Errorf("an address that is none of the node's any more has flags %v", flags)
		}
		r.end()
	})
}

func TestOldestInUse(t *testing.T) {
	var handle services.Handle
	blocks := []*stats.Block{{}, {}}
	p := loop.NewPublisher(&handle, blocks)
	s := services.NewBuilder(nil).Build()
	for range 6 {
		s = services.NewBuilder(s).Build()
	}
	if p.Published() != 0 {
		t.Error("published before anything was")
	}
	p.Publish(s)
	for _, c := range []struct{ a, b, want uint64 }{
		{stats.Offline, stats.Offline, 7},
		{stats.Offline, 5, 5},
		{6, 5, 5},
		{7, 7, 7},
		{0, 7, 0}, // woke, and has not said what it uses
	} {
		blocks[0].Generation.Store(c.a)
		blocks[1].Generation.Store(c.b)
		if got := p.Oldest(); got != c.want {
			t.Errorf("workers at %d and %d: oldest %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// TestNotClosedWhileAWorkerUsesTheOldSnapshot: a worker that still judges by the snapshot
// before may make a flow after the flows were asked.
func TestNotClosedWhileAWorkerUsesTheOldSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig, c *loop.Config) { c.Flows = r.flows })
		r.add(1)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		r.worker.Generation.Store(r.handle.Load().Generation) // in the midst of a batch, with the service
		r.remove(1)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !r.kernel.Frontends[vipKey(1)] {
			t.Error("the kernel program was told to pass packets of a frontend that a worker may still make flows for")
		}
		r.end()
	})
}
