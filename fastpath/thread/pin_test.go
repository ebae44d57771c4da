//go:build root

package thread

import (
	"errors"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// priority is the policy, the nice value and, since Linux 6.12, the time slice of a thread.
type priority struct {
	policy uint32
	nice   int
	slice  time.Duration
}

func priorityOf(t *testing.T, tid int) priority {
	t.Helper()
	a, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		t.Fatal(err)
	}
	return priority{a.Policy, int(a.Nice), time.Duration(a.Runtime)}
}

// lower returns a nice value that needs no privilege and that this process, which may run under
// nice(1), does not have.
func lower(t *testing.T) int {
	n := min(priorityOf(t, unix.Getpid()).nice+5, 19)
	if n == 0 { // 0 means the process's own
		n++
	}
	return n
}

// pinHere pins the calling goroutine, which keeps its thread, until the test ends.
func pinHere(t *testing.T, g *Group, cpu int) *Pin {
	t.Helper()
	runtime.LockOSThread()
	p, err := g.Pin(cpu)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Release()
		runtime.UnlockOSThread()
	})
	return p
}

// skipIfRefused skips the test if the kernel allows no real-time threads in this cgroup.
func skipIfRefused(t *testing.T, p Priority, err error) {
	t.Helper()
	if p.RealTime && errors.Is(err, unix.EPERM) {
		t.Skip("this kernel has CONFIG_RT_GROUP_SCHED, and this cgroup no real-time bandwidth:", err)
	}
}

// TestCheckFollowsTheThread: the mask and the priority follow a goroutine from thread to thread,
// and former threads lose them.
func TestCheckFollowsTheThread(t *testing.T) {
	g, cpu := groupOf(t, lower(t))
	usual := priorityOf(t, unix.Getpid())
	prioritized := priority{unix.SCHED_NORMAL, g.priority.Load().Nice, min(usual.slice, slice)}
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
		// Another goroutine keeps this thread busy while the test waits.
		sat := make(chan struct{})
		go func() {
			runtime.LockOSThread() // keeps the thread that the test has left
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
	if p.Moves() == 0 || mask(t, now) != p.cpu || priorityOf(t, now) != prioritized {
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

// TestSetPriority: pinned threads get another priority, and the process's own again. Tidy resets a
// thread that inherited a former priority of workers.
func TestSetPriority(t *testing.T) {
	other := Priority{Nice: lower(t)}
	t.Run("nice value", func(t *testing.T) {
		testSetPriority(t, other, func(got priority) bool { return got.nice == other.Nice })
	})
	t.Run("real time", func(t *testing.T) {
		testSetPriority(t, Priority{RealTime: true}, func(got priority) bool { return got.policy == unix.SCHED_RR })
	})
}

func testSetPriority(t *testing.T, other Priority, granted func(priority) bool) {
	g, cpu := group(t)
	usual := priorityOf(t, unix.Getpid())
	p := pinHere(t, g, cpu)
	tid := unix.Gettid()
	pinned := priorityOf(t, tid)
	err := g.SetPriority(other)
	skipIfRefused(t, other, err)
	if err != nil || !granted(priorityOf(t, tid)) || !ShortSlice(tid) {
		t.Errorf("priority %+v, %v, want %+v", priorityOf(t, tid), err, other)
	}
	if err := g.SetPriority(Priority{}); err != nil || priorityOf(t, tid) != pinned {
		t.Errorf("priority %+v, %v, want the previous one, %+v", priorityOf(t, tid), err, pinned)
	}
	p.Release()
	if err := g.schedule(tid, other, 0); err != nil { // as if it had inherited it from a worker's thread
		t.Fatal(err)
	}
	if _, err := g.Tidy(); err != nil || priorityOf(t, tid) != usual {
		t.Errorf("a thread without a worker: %+v, %v, want %+v", priorityOf(t, tid), err, usual)
	}
}

// realTimeHere returns a group whose only pinned goroutine is the caller, on a real-time thread.
func realTimeHere(t *testing.T) *Group {
	t.Helper()
	g, cpu := group(t)
	p := Priority{RealTime: true}
	if err := g.SetPriority(p); err != nil {
		skipIfRefused(t, p, err)
		t.Fatal(err)
	}
	pinHere(t, g, cpu)
	return g
}

// TestRealTimeIsNotInherited: a thread created by a worker's thread is not a real-time thread.
func TestRealTimeIsNotInherited(t *testing.T) {
	realTimeHere(t)
	// A child process inherits in the same way as a thread (sched_fork, kernel/sched/core.c).
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = child.Process.Kill(), child.Wait() }()
	if got := priorityOf(t, child.Process.Pid); got.policy != unix.SCHED_NORMAL {
		t.Errorf("the child has %+v, this thread %+v", got, priorityOf(t, unix.Gettid()))
	}
}

// TestRealTime: the thread has a higher real-time priority than a worker's, does not pass it on to
// its children, and is left alone by Tidy.
func TestRealTime(t *testing.T) {
	g := realTimeHere(t)
	made, release := make(chan int), make(chan struct{})
	defer close(release)
	go OnOwnThread(func() {
		if err := RealTime(); err != nil {
			t.Error(err)
		}
		made <- unix.Gettid()
		<-release
	})
	tid := <-made
	if tid == unix.Getpid() {
		t.Error("it is the first thread of the process")
	}
	if _, err := g.Tidy(); err != nil {
		t.Fatal(err)
	}
	a, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		t.Fatal(err)
	}
	if a.Policy != unix.SCHED_RR || a.Priority != lowestRealTime+1 || a.Flags&unix.SCHED_FLAG_RESET_ON_FORK == 0 {
		t.Errorf("the thread has %+v", a)
	}
}

// TestTidy: a thread that inherited the mask or the priority loses it; the worker's thread keeps
// it.
func TestTidy(t *testing.T) {
	t.Run("mask", func(t *testing.T) {
		g, cpu := group(t)
		testTidy(t, g, cpu, func(tid int) error { return unix.SchedSetaffinity(tid, &g.pinned()[0].cpu) })
	})
	t.Run("slice", func(t *testing.T) {
		g, cpu := group(t)
		testTidy(t, g, cpu, g.prioritize)
	})
	t.Run("priority", func(t *testing.T) {
		g, cpu := groupOf(t, lower(t))
		testTidy(t, g, cpu, g.prioritize)
	})
}

func testTidy(t *testing.T, g *Group, cpu int, inherit func(tid int) error) {
	usual := priorityOf(t, unix.Getpid())
	if g.all.Count() == 1 {
		g.all.Set(cpu + 1) // the kernel accepts a mask with CPUs that do not exist
	}
	p := pinHere(t, g, cpu)
	made, release := make(chan int), make(chan struct{})
	defer close(release)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		tid := unix.Gettid()
		if err := inherit(tid); err != nil { // as if the worker's thread had created it
			t.Error(err)
		}
		made <- tid
		<-release
	}()
	stray := <-made
	unowned, err := g.Tidy()
	if err != nil {
		t.Fatal(err)
	}
	if unowned == 0 || mask(t, stray) == p.cpu || priorityOf(t, stray) != usual {
		t.Errorf("%d unowned; the thread's mask is %v, its priority %v", unowned, mask(t, stray), priorityOf(t, stray))
	}
	nice := g.priority.Load().Nice
	if mask(t, unix.Gettid()) != p.cpu || nice != 0 && priorityOf(t, unix.Gettid()).nice != nice {
		t.Errorf("the worker's own mask is %v", mask(t, unix.Gettid()))
	}
	if unowned, err = g.Tidy(); err != nil || unowned != 0 {
		t.Errorf("a second time there are %d unowned, %v", unowned, err)
	}
}
