// Package thread keeps goroutines on CPUs.
//
// runtime.LockOSThread would lock a goroutine to a thread. But the Go scheduler preempts a
// goroutine that runs for 10 ms (runtime.sysmon, retake). A locked thread then gives its P to a
// second thread, sleeps, and is woken when the second thread finds the goroutine
// (runtime.stoplockedm, startlockedm). Under traffic these are two thread switches up to a hundred
// times a second, and each waits for a CPU that other threads also use. A goroutine that is not
// locked is put into a queue, and another thread is woken to take it from there, which mostly gets
// it before the old thread does. So a pinned goroutine yields before it is preempted (Yield), in a
// way that wakes no thread. ADR 9 compares the three.
//
// The garbage collector may still preempt it, and then another thread may take it. That cannot
// happen without a gap in which the goroutine did not run, or a Yield. So the goroutine calls Check
// after each of these, which moves the CPU mask to its current thread:
//
//	worker ──runs on──► thread 7   mask {1}        after a move:  thread 7   all CPUs
//	                    others     all CPUs                       thread 9   mask {1}
//
// A thread inherits the mask of the thread that creates it. So a thread created by a worker's
// thread is bound to the worker's CPU, but runs no worker. Group.Tidy, called periodically on
// another goroutine, resets such threads.
package thread

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Gap is the minimum time without running, in nanoseconds, in which a goroutine may have changed
// threads: waking a thread takes longer.
const Gap = 5_000

// Group manages the pinned goroutines of a process. Any goroutine may call its methods.
type Group struct {
	all      unix.CPUSet // the CPUs that the process may use
	priority atomic.Pointer[Priority]
	usual    unix.SchedAttr
	mu       sync.Mutex             // guards Tidy, past, and writes of pins and of priority
	past     []int                  // nice values that pinned threads have or had; 0 counts as none
	pins     atomic.Pointer[[]*Pin] // the slice is immutable; replace stores a new one
}

// Priority is the scheduling priority of pinned threads. A higher one than the process's needs
// CAP_SYS_NICE, or a limit that allows it (RLIMIT_NICE, RLIMIT_RTPRIO).
type Priority struct {
	// Nice is a nice value (setpriority(2)); 0 keeps the process's value.
	Nice int
	// RealTime selects the policy SCHED_RR with its lowest priority (sched(7)), in place of a nice
	// value. A runnable real-time thread preempts other threads at once, and keeps the CPU. If it
	// never sleeps, it keeps the CPU for 950 of 1,000 ms, and then waits for 50 ms.
	RealTime bool
}

// NewGroup returns a group whose pinned threads get priority p, and the shortest possible time
// slice, which needs no privilege. It must be called before any thread of the process is pinned.
func NewGroup(p Priority) (*Group, error) {
	g := &Group{past: []int{p.Nice}}
	g.priority.Store(&p)
	g.pins.Store(new([]*Pin))
	a, err := unix.SchedGetAttr(unix.Getpid(), 0) // the first thread has inherited no worker's settings
	if err != nil {
		return nil, fmt.Errorf("read the scheduling of this process: %w", err)
	}
	g.usual = *a
	if err := unix.SchedGetaffinity(0, &g.all); err != nil {
		return nil, fmt.Errorf("read the CPUs this process may use: %w", err)
	}
	return g, nil
}

// Pin belongs to one goroutine. Only that goroutine may call its methods, except for Thread.
type Pin struct {
	group *Group
	cpu   unix.CPUSet
	// tid is the thread that has the mask cpu. The pinned goroutine stores it before it sets the
	// mask; unbind loads it after it has reset a mask.
	tid   atomic.Int64
	moves uint64
}

// Pin binds the calling goroutine to a CPU.
func (g *Group) Pin(cpu int) (*Pin, error) {
	p := &Pin{group: g}
	p.cpu.Set(cpu)
	setTimerSlack()
	tid := unix.Gettid()
	p.tid.Store(int64(tid))
	g.replace(func(pins []*Pin) []*Pin { return append(pins, p) })
	err := bind(tid, &p.cpu, cpu)
	if err == nil {
		err = g.prioritize(tid)
	}
	if err != nil {
		p.Release()
		return nil, err
	}
	return p, nil
}

// Nap blocks the thread for a time. A pinned or bound thread is woken at its end; other threads are
// woken up to 50 us later (timer slack, prctl(2)).
func Nap(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // a signal may end it early, which is harmless
}

// setTimerSlack makes the kernel wake the calling thread at the requested time.
func setTimerSlack() {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // after an error naps are longer
}

// slice is the time slice that prioritized threads request: the shortest that the kernel allows. A
// waking thread preempts a thread with a longer slice at once, instead of at the next tick, as long
// as it has used less than its share (EEVDF, PREEMPT_SHORT in kernel/sched/features.h; no effect
// before Linux 6.12).
const slice = 100 * time.Microsecond

// prioritize gives a thread the priority and the time slice of pinned threads. It returns no error
// if the kernel refuses the slice: ShortSlice reports that.
//
// Another goroutine may change the priority meanwhile: prioritize repeats until the thread has the
// priority that was stored last.
func (g *Group) prioritize(tid int) error {
	for {
		p := g.priority.Load()
		if err := g.give(tid, *p); err != nil || g.priority.Load() == p {
			return err
		}
	}
}

func (g *Group) give(tid int, p Priority) error {
	switch {
	case p.RealTime:
		if err := g.schedule(tid, p, 0); err != nil {
			return fmt.Errorf("make a worker a real-time thread: %w (it needs CAP_SYS_NICE or RLIMIT_RTPRIO, and with "+
				"CONFIG_RT_GROUP_SCHED real-time bandwidth of its cgroup)", err)
		}
	case p.Nice == 0:
		_ = g.schedule(tid, Priority{Nice: int(g.usual.Nice)}, slice)
	default:
		if err := g.schedule(tid, p, slice); err != nil {
			return fmt.Errorf("give a worker the nice value %d: %w (below that of the process it needs CAP_SYS_NICE)",
				p.Nice, err)
		}
	}
	return nil
}

// SetPriority changes the priority of pinned threads. After an error they have the previous
// priority. It returns an error if the process's scheduling policy is not SCHED_OTHER: an
// administrator then chose the policy on purpose.
func (g *Group) SetPriority(p Priority) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.priority.Load()
	if *before == p {
		return nil
	}
	if g.usual.Policy != unix.SCHED_NORMAL {
		return errPolicy
	}
	if !slices.Contains(g.past, p.Nice) {
		g.past = append(g.past, p.Nice)
	}
	err := g.reprioritize(&p)
	if err != nil {
		_ = g.reprioritize(before) // allowed: the threads had it before
	}
	return err
}

// reprioritize stores the priority before it loads the threads. Check does the reverse: it stores
// its thread, and then loads the priority. The caller holds mu.
func (g *Group) reprioritize(to *Priority) (err error) {
	g.priority.Store(to)
	for _, p := range g.pinned() {
		if e := g.prioritize(int(p.tid.Load())); e != nil && !errors.Is(e, unix.ESRCH) {
			err = e
		}
	}
	return err
}

// deprioritize gives a thread the nice value and time slice of the process.
func (g *Group) deprioritize(tid int) {
	_ = g.schedule(tid, Priority{Nice: int(g.usual.Nice)}, 0) // see Check
}

// lowestRealTime is the lowest priority of real-time threads (sched(7)). Threads of RealTime have
// the next one.
const lowestRealTime = 1

// OnOwnThread calls f on a thread that runs no other goroutine and ends with the calling goroutine.
// It does not use the process's first thread, which does not end, and whose settings are the
// process's (NewGroup).
func OnOwnThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	done := make(chan struct{})
	go func() { // on another thread, because this one is locked
		defer close(done)
		OnOwnThread(f)
	}()
	<-done
	runtime.UnlockOSThread()
}

// RealTime makes the calling thread a real-time thread, with a priority above that of pinned ones,
// which may wait for it. The caller must be called by Own, and must wait in the kernel between
// short pieces of work.
func RealTime() error {
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return fmt.Errorf("read the scheduling of a thread: %w", err)
	}
	if a.Policy != unix.SCHED_NORMAL {
		return errPolicy
	}
	a.Nice = 0
	makeRealTime(a, lowestRealTime+1)
	if err := unix.SchedSetAttr(0, a, 0); err != nil {
		return fmt.Errorf("make a thread a real-time thread: %w (it needs CAP_SYS_NICE or RLIMIT_RTPRIO)", err)
	}
	return nil
}

// makeRealTime sets the attributes that make a thread a real-time thread.
func makeRealTime(a *unix.SchedAttr, priority uint32) {
	a.Policy, a.Priority, a.Runtime = unix.SCHED_RR, priority, 0
	a.Flags |= unix.SCHED_FLAG_RESET_ON_FORK // threads that it creates are not real-time threads
}

// errPolicy: an administrator has chosen the policy on purpose.
var errPolicy = errors.New("the process has another scheduling policy than SCHED_OTHER (sched(7))")

// schedule sets a thread's priority and time slice; a slice of 0 is the kernel's default. It leaves
// a thread alone whose policy this package has not set: that policy was chosen on purpose.
func (g *Group) schedule(tid int, p Priority, slice time.Duration) error {
	a, err := unix.SchedGetAttr(tid, 0)
	if err != nil || a.Policy != unix.SCHED_NORMAL && !g.isRealTime(a) {
		return err
	}
	a.Policy, a.Priority, a.Nice, a.Runtime = unix.SCHED_NORMAL, 0, int32(p.Nice), uint64(slice)
	if p.RealTime {
		makeRealTime(a, lowestRealTime)
	}
	return unix.SchedSetAttr(tid, a, 0)
}

// isRealTime reports whether schedule has made a thread a real-time thread.
func (g *Group) isRealTime(a *unix.SchedAttr) bool {
	return a.Policy == unix.SCHED_RR && a.Priority == lowestRealTime && g.usual.Policy == unix.SCHED_NORMAL
}

// Bind binds the calling thread to a CPU. The goroutine should be locked to the thread.
func Bind(cpu int) error {
	setTimerSlack()
	var set unix.CPUSet
	set.Set(cpu)
	return bind(unix.Gettid(), &set, cpu)
}

func bind(tid int, set *unix.CPUSet, cpu int) error {
	if err := unix.SchedSetaffinity(tid, set); err != nil {
		return fmt.Errorf("pin to CPU %d: %w (is the CPU online and in the process's cpuset?)", cpu, err)
	}
	return nil
}

// Thread returns the ID of the thread that Check last found the goroutine on. Safe from any
// goroutine.
func (p *Pin) Thread() int { return int(p.tid.Load()) }

// ShortSlice reports whether a thread has the time slice of pinned threads, which kernels before
// Linux 6.12 do not support, or is a real-time thread, which needs none.
func ShortSlice(tid int) bool {
	a, err := unix.SchedGetAttr(tid, 0)
	return err == nil && (a.Runtime == uint64(slice) || a.Policy == unix.SCHED_RR)
}

// Check pins the thread that the goroutine runs on. It must be called after every gap of more than
// Gap, and after Yield. It costs one system call, and a few more if the goroutine has moved.
//
// It sets masks by thread ID, not for "the calling thread": if the goroutine moves in the middle of
// Check, the thread that it left is pinned, and the Check after that gap knows its ID.
func (p *Pin) Check() {
	tid, was := unix.Gettid(), int(p.tid.Load())
	if tid == was {
		return
	}
	p.moves++
	p.tid.Store(int64(tid))
	// A failure means that the thread ended, or that the cpuset shrank: the loop continues on any
	// CPU.
	_ = p.group.unbind(was)
	_ = unix.SchedSetaffinity(tid, &p.cpu)
	_ = p.group.prioritize(tid)
	setTimerSlack()
}

// Moves returns how often Check has found the goroutine on another thread.
func (p *Pin) Moves() uint64 { return p.moves }

// Release unpins the goroutine: its thread may run on any CPU of the process.
func (p *Pin) Release() {
	g := p.group
	g.replace(func(pins []*Pin) []*Pin {
		return slices.DeleteFunc(pins, func(other *Pin) bool { return other == p })
	})
	_ = g.unbind(int(p.tid.Load())) // see Check
}

func (g *Group) pinned() []*Pin { return *g.pins.Load() }

// replace replaces pins by a changed copy.
func (g *Group) replace(change func([]*Pin) []*Pin) {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := change(slices.Clone(g.pinned()))
	g.pins.Store(&next)
}

// unbind gives a thread the mask and the priority of the process, unless a pinned goroutine runs on
// it: two goroutines that are preempted at once may continue on each other's threads.
func (g *Group) unbind(tid int) error {
	err := unix.SchedSetaffinity(tid, &g.all)
	g.deprioritize(tid)
	for _, p := range g.pinned() {
		if int(p.tid.Load()) == tid {
			_ = unix.SchedSetaffinity(tid, &p.cpu) // see Check
			_ = g.prioritize(tid)
		}
	}
	return err
}

// TidyEvery calls Tidy periodically until ctx is done, or returns Tidy's error.
func (g *Group) TidyEvery(ctx context.Context, pace time.Duration) error {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if _, err := g.Tidy(); err != nil {
				return err
			}
		}
	}
}

// Tidy gives the mask and the priority of the process to threads that run no worker but are bound
// to a worker's CPU or have a worker's nice value or time slice. It returns how many there were.
func (g *Group) Tidy() (unowned int, err error) {
	tasks, err := filepath.Glob("/proc/self/task/[0-9]*")
	if err != nil {
		return 0, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			return unowned, err
		}
		var mask unix.CPUSet
		if unix.SchedGetaffinity(tid, &mask) != nil || !g.isUnowned(tid, &mask) {
			continue // the thread has ended, or needs no change
		}
		if err := g.unbind(tid); err != nil && !errors.Is(err, unix.ESRCH) {
			return unowned, fmt.Errorf("unbind thread %d: %w", tid, err)
		}
		unowned++
	}
	return unowned, nil
}

// prioritized reports whether a thread has the time slice of pinned threads, or a priority that
// they have or had, and that is not the process's own.
func (g *Group) prioritized(tid int) bool {
	a, err := unix.SchedGetAttr(tid, 0)
	if err != nil || a.Policy != unix.SCHED_NORMAL {
		return err == nil && g.isRealTime(a)
	}
	usual := &g.usual
	return a.Runtime == uint64(slice) && usual.Runtime != a.Runtime ||
		a.Nice != 0 && a.Nice != usual.Nice && slices.Contains(g.past, int(a.Nice))
}

// isUnowned reports whether a thread has a worker's mask or priority but runs no worker.
func (g *Group) isUnowned(tid int, mask *unix.CPUSet) bool {
	bound := false
	for _, p := range g.pinned() {
		if int(p.tid.Load()) == tid {
			return false
		}
		bound = bound || *mask == p.cpu
	}
	return bound && *mask != g.all || g.prioritized(tid)
}
