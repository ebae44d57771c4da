package thread

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func group(t *testing.T) (g *Group, cpu int) { return groupOf(t, 0) }

func groupOf(t *testing.T, nice int) (g *Group, cpu int) {
	t.Helper()
	g, err := NewGroup(nice)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Tidy() }) // threads that pinned ones made
	for !g.all.IsSet(cpu) {
		cpu++
	}
	return g, cpu
}

// priority is the nice value and, since Linux 6.12, the time slice of a thread.
type priority struct {
	nice  int
	slice time.Duration
}

func priorityOf(t *testing.T, tid int) priority {
	t.Helper()
	a, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		t.Fatal(err)
	}
	return priority{int(a.Nice), time.Duration(a.Runtime)}
}

func mask(t *testing.T, tid int) (set unix.CPUSet) {
	t.Helper()
	if err := unix.SchedGetaffinity(tid, &set); err != nil {
		t.Fatal(err)
	}
	return set
}

// TestFollow: a goroutine that is passed from thread to thread has its mask and its priority with
// it, and leaves none behind.
func TestFollow(t *testing.T) {
	g, cpu := groupOf(t, 5) // anybody may
	usual := priorityOf(t, unix.Getpid())
	favoured := priority{5, min(usual.slice, slice)}
	p, err := g.Pin(cpu)
	if err != nil {
		t.Fatal(err)
	}
	first := unix.Gettid()
	for deadline := time.Now().Add(10 * time.Second); ; {
		runtime.LockOSThread() // no further move
		if unix.Gettid() != first {
			break
		}
		runtime.UnlockOSThread()
		if time.Now().After(deadline) {
			t.Fatal("the goroutine does not leave its thread")
		}
		// Somebody who sits on this thread while we wait.
		sat := make(chan struct{})
		go func() {
			runtime.LockOSThread() // for its life, if it is on the thread we left
			sleep := unix.NsecToTimespec(int64(20 * time.Millisecond))
			close(sat)
			_ = unix.Nanosleep(&sleep, nil)
			runtime.UnlockOSThread()
		}()
		<-sat
		runtime.Gosched()
	}
	defer runtime.UnlockOSThread()
	p.Check()
	now := unix.Gettid()
	if p.Moves() == 0 || mask(t, now) != p.cpu || priorityOf(t, now) != favoured {
		t.Errorf("after %d moves the thread's mask is %v, its priority %v", p.Moves(), mask(t, now), priorityOf(t, now))
	}
	if mask(t, first) != g.all || priorityOf(t, first) != usual {
		t.Errorf("the thread it left still has the mask %v, the priority %v", mask(t, first), priorityOf(t, first))
	}
	p.Release()
	if mask(t, now) != g.all || priorityOf(t, now) != usual {
		t.Errorf("after Release the mask is %v, the priority %v", mask(t, now), priorityOf(t, now))
	}
}

// TestTidy: a thread that inherited the mask, or the priority, loses it; the worker's keeps it.
func TestTidy(t *testing.T) {
	t.Run("mask", func(t *testing.T) {
		g, cpu := group(t)
		testTidy(t, g, cpu, func(tid int) error { return unix.SchedSetaffinity(tid, &g.pinned()[0].cpu) })
	})
	t.Run("priority", func(t *testing.T) {
		g, cpu := groupOf(t, 5)
		testTidy(t, g, cpu, g.favour)
	})
}

func testTidy(t *testing.T, g *Group, cpu int, inherit func(tid int) error) {
	usual := priorityOf(t, unix.Getpid())
	if g.all.Count() == 1 {
		g.all.Set(cpu + 1) // the kernel takes a mask with CPUs that are not there
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := g.Pin(cpu)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	made, release := make(chan int), make(chan struct{})
	defer close(release)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		tid := unix.Gettid()
		if err := inherit(tid); err != nil { // as if our thread had made it
			t.Error(err)
		}
		made <- tid
		<-release
	}()
	stray := <-made
	strays, err := g.Tidy()
	if err != nil {
		t.Fatal(err)
	}
	if strays == 0 || mask(t, stray) == p.cpu || priorityOf(t, stray) != usual {
		t.Errorf("%d strays; the thread's mask is %v, its priority %v", strays, mask(t, stray), priorityOf(t, stray))
	}
	if mask(t, unix.Gettid()) != p.cpu || g.nice != 0 && priorityOf(t, unix.Gettid()).nice != g.nice {
		t.Errorf("the worker's own mask is %v", mask(t, unix.Gettid()))
	}
	if strays, err = g.Tidy(); err != nil || strays != 0 {
		t.Errorf("a second time there are %d strays, %v", strays, err)
	}
}

// TestSwap: two workers that are preempted at once may each continue on the other's thread. The
// one that checks last must not unbind the thread that it left, which is the other's now.
func TestSwap(t *testing.T) {
	g, cpu := group(t)
	if g.all.Count() == 1 {
		g.all.Set(cpu + 1) // as in TestTidy
	}
	// onThread is a thread of its own that does what it is told.
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
		t.Error("a CPU that is not there is no error")
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
	g, err := NewGroup(0)
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
