package flowtable

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

// A holder of a ref may use it until its next Enter, even if the flow has ended and the handle that
// ended it has left. Its writes must not reach the lists of dead records, and it must read the flow
// that it found.
func TestOldRefAfterLeave(t *testing.T) {
	const flows, victim = 20, 15
	tb, killer := testTable(t, 4096, 0)
	holder, err := tb.Register()
	if err != nil {
		t.Fatal(err)
	}
	made := make([]NewFlow, flows)
	for i := range made {
		made[i] = newFlow(header.ProtoUDP, false, uint32(i))
		killer.mustCreate(t, bootTime, made[i])
	}
	holder.Enter(bootTime)
	ref, _ := holder.lookup(&made[victim].Client, bootTime)
	reply := holder.reply(ref)
	killer.Delete(ref)
	killer.Leave()
	if got := holder.reply(ref); got != reply {
		t.Errorf("after its end the holder reads %+v, it found %+v", got, reply)
	}
	if f := holder.Flow(ref); f.Proto() != header.ProtoUDP || f.Service() != 7 {
		t.Errorf("after its end the holder reads protocol %d and service %d", f.Proto(), f.Service())
	}
	holder.Bind(ref, 7, 1, 2, 3, 4)
	holder.Observe(ref, ReplySide, seg(ReplySide, 0), bootTime)
	validate(t, tb)
	for range 10 {
		killer.Enter(bootTime)
		holder.Enter(bootTime)
	}
	killer.Leave()
	validate(t, tb)
	for i := range uint32(300) {
		holder.mustCreate(t, bootTime, newFlow(header.ProtoUDP, false, 1000+i))
	}
	for i := range made {
		if r, _ := holder.lookup(&made[i].Client, bootTime); (r != 0) != (i != victim) {
			t.Errorf("flow %d: ref %d", i, r)
		}
	}
	validate(t, tb)
}

// One worker binds the flows that it looks up, as each worker must after a change of routes.
// Another ends flows, makes flows, and leaves after each.
func TestBindWhileOthersLeave(t *testing.T) {
	const flows = 64
	tb, own := testTable(t, 4096, 0)
	own.Close()
	rounds := 100_000
	if testing.Short() || size.Race {
		rounds = 20_000
	}
	seed := testSeed(t)
	var stop atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	enter := func(n uint64) (*Handle, *rand.Rand) {
		h, err := tb.Register()
		if err != nil {
			t.Fatal(err)
		}
		return h, rand.New(rand.NewPCG(seed, n))
	}
	binder, bRnd := enter(1)
	killer, kRnd := enter(2)
	wg.Go(func() {
		defer binder.Close()
		for generation := uint32(1); !stop.Load(); generation++ {
			binder.Enter(bootTime)
			for range flows {
				n := newFlow(header.ProtoICMP, false, uint32(bRnd.IntN(flows)))
				if r, _ := binder.lookup(&n.Client, bootTime); r != 0 && binder.Flow(r).Binding() != generation {
					binder.Bind(r, generation%1000, 1, 1, 1, 1)
				}
			}
		}
	})
	for range rounds {
		killer.Enter(bootTime)
		n := newFlow(header.ProtoICMP, false, uint32(kRnd.IntN(flows)))
		if r, _ := killer.lookup(&n.Client, bootTime); r != 0 {
			killer.Delete(r)
		} else if _, s := killer.Create(bootTime, &n); s != Created && s != TableFull {
			t.Errorf("Create: %v", s)
		}
		killer.Leave()
	}
	stop.Store(true)
	wg.Wait()
	killer.Close()
	validate(t, tb)
}

// A handle that is stopped while it adopts orphans blocks no other: a handle that leaves meanwhile
// keeps its own batches.
func TestLeaveWhileOrphansAreTaken(t *testing.T) {
	tb, h := testTable(t, 100, 0)
	other, err := tb.Register()
	if err != nil {
		t.Fatal(err)
	}
	orphan := func(n uint32) {
		h.Enter(bootTime)
		h.Delete(h.mustCreate(t, bootTime, newFlow(header.ProtoICMP, false, n)))
		h.Leave()
	}
	orphan(1)
	if got := tb.orphaned[0].And(0); got != 1 { // the other handle stops here
		t.Fatalf("orphaned %b, want the first handle's", got)
	}
	orphan(2)
	orphan(3)
	if got := tb.orphaned[0].Load(); got != 0 || h.limbo.n == 0 {
		t.Errorf("left a second time while the first is being read: orphaned %b, %d batches kept", got, h.limbo.n)
	}
	for _, b := range tb.orphans[0].batches[:tb.orphans[0].n] { // the other handle continues here
		other.limbo.add(tb, b)
	}
	tb.orphans[0].busy.Store(false)
	h.Enter(bootTime)
	h.Leave()
	orphan(4)
	other.Enter(bootTime)
	other.Close()
	validate(t, tb)
}
