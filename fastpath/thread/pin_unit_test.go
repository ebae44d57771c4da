package thread

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func group(t *testing.T) (g *Group, cpu int) { return groupOf(t, 0) }

func groupOf(t *testing.T, nice int) (g *Group, cpu int) {
	t.Helper()
	g, err := NewGroup(Priority{Nice: nice})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Tidy() }) // resets threads created by pinned threads
	for !g.all.IsSet(cpu) {
		cpu++
	}
	return g, cpu
}

func mask(t *testing.T, tid int) (set unix.CPUSet) {
	t.Helper()
	if err := unix.SchedGetaffinity(tid, &set); err != nil {
		t.Fatal(err)
	}
	return set
}

// TestPinsSwapThreads: two workers that are preempted at once may each continue on the other's
// thread. The last one to call Check must not unbind the thread that it left, on which the other
// now runs.
func TestPinsSwapThreads(t *testing.T) {
	g, cpu := group(t)
	if g.all.Count() == 1 {
		g.all.Set(cpu + 1) // as in TestTidy
	}
	// onThread starts a locked thread, and returns a function that runs functions on it.
	onThread := func() func(func()) {
		do, done := make(chan func()), make(chan struct{})
		t.Cleanup(func() { close(do) })
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for f := range do {
				f()
				done <- struct{}{}
			}
		}()
		return func(f func()) { do <- f; <-done }
	}
	type worker struct {
		pin *Pin
		err error
		tid int
	}
	var a, b worker
	one, two := onThread(), onThread()
	one(func() { a.pin, a.err = g.Pin(cpu); a.tid = unix.Gettid() })
	two(func() { b.pin, b.err = g.Pin(cpu); b.tid = unix.Gettid() })
	if a.err != nil || b.err != nil {
		t.Fatal(a.err, b.err)
	}
	two(a.pin.Check)
	one(b.pin.Check)
	if mask(t, b.tid) != a.pin.cpu || mask(t, a.tid) != b.pin.cpu {
		t.Errorf("the threads' masks are %v and %v, want both bound", mask(t, a.tid), mask(t, b.tid))
	}
	one(b.pin.Release)
	two(a.pin.Release)
	if mask(t, a.tid) != g.all || mask(t, b.tid) != g.all {
		t.Errorf("after Release they are %v and %v", mask(t, a.tid), mask(t, b.tid))
	}
}

func TestNoSuchCPU(t *testing.T) {
	g, _ := group(t)
	if _, err := g.Pin(len(g.all)*64 - 1); err == nil {
		t.Error("a CPU that does not exist is no error")
	}
	if len(g.pinned()) != 0 {
		t.Error("a pin that failed is kept")
	}
}

func TestCheckDoesNotAllocate(t *testing.T) {
	g, cpu := group(t)
	p, err := g.Pin(cpu)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	if n := testing.AllocsPerRun(100, p.Check); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCheck(b *testing.B) {
	g, err := NewGroup(Priority{})
	if err != nil {
		b.Fatal(err)
	}
	p, err := g.Pin(0)
	if err != nil {
		b.Fatal(err)
	}
	defer p.Release()
	for b.Loop() {
		p.Check()
	}
}
