// Package thread keeps a goroutine on one CPU.
//
// runtime.LockOSThread would do that by tying the goroutine to a thread. But what runs
// for 10 ms is preempted (runtime.sysmon, retake), and a locked thread that is preempted gives its P to
// a second thread, sleeps, and is woken by it when that finds the goroutine
// (runtime.stoplockedm, startlockedm): two switches between threads, 30 to 100 times a
// second for as long as there is traffic, each of which waits for a CPU that others
// use, too. A goroutine that is not locked is put in a queue and taken out again by the same thread, in a microsecond.
//
// The price is that it may be taken out by another thread. A Pin notices afterwards, since that
// cannot happen without a gap in which the goroutine did not run: its owner calls Check
// after each of them, and the CPU's mask moves to the thread that runs the goroutine now.
//
//	goroutine ──runs on──► thread 7   mask {1}         after a move:  thread 7   mask of the process
//	                       others     mask of the process             thread 9   mask {1}
package thread

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Gap is the least time without running in which a goroutine may have changed threads: to
// sleep, or wake, a thread takes longer.
const Gap = 5_000 // ns

// Pin is a goroutine's. Only that goroutine calls its methods.
type Pin struct {
	cpu, others unix.CPUSet
	tid         int // the thread with the mask cpu
	moves       uint64
}

// New pins the calling goroutine. Other threads get the mask that the process has now.
func New(cpu int) (*Pin, error) {
	p := &Pin{}
	p.cpu.Set(cpu)
	if err := unix.SchedGetaffinity(unix.Getpid(), &p.others); err != nil {
		return nil, fmt.Errorf("read the CPUs this process may use: %w", err)
	}
	p.tid = unix.Gettid()
	if err := unix.SchedSetaffinity(p.tid, &p.cpu); err != nil {
		return nil, fmt.Errorf("pin to CPU %d: %w (is the CPU online and in the process's cpuset?)", cpu, err)
	}
	return p, nil
}

// Check follows the goroutine to the thread that it runs on now. It is to be called after
// every gap of more than Gap. It costs a system call, two more after a move, and does not
// tell the scheduler of them, so that they are no occasion to move.
//
// The mask is set by number, not for "this thread": if the goroutine moves between two
// lines here, the wrong thread is pinned, and the next Check knows which.
func (p *Pin) Check() {
	tid := unix.Gettid()
	if tid == p.tid {
		return
	}
	p.moves++
	// Errors: a thread that ended, or a cpuset that shrank. Neither can be helped here, and
	// the loop goes on where it is.
	_ = unix.SchedSetaffinity(p.tid, &p.others)
	_ = unix.SchedSetaffinity(tid, &p.cpu)
	p.tid = tid
}

// Moves is how often the goroutine was found on another thread.
func (p *Pin) Moves() uint64 { return p.moves }

// Release gives the thread back.
func (p *Pin) Release() {
	_ = unix.SchedSetaffinity(p.tid, &p.others) // see Check
}
