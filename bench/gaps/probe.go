package gaps

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
)

// probe is a link that never has a packet and reads the clock each time it is asked. The
// worker's goroutine alone calls its methods but for take.
type probe struct {
	fastpath.NoLink
	base    time.Time
	last    uint64      // nanoseconds after base
	used    unix.Rusage // of the thread tid
	tid     int
	cpu     int // that it should run on
	current *Window
	began   uint64
	// next is the window to count in from now on. The store of take publishes it; the
	// load in Receive pairs with it. finished is the window that was counted in before:
	// its store publishes what is in it to take.
	next     atomic.Pointer[Window]
	finished atomic.Pointer[Window]
}

// rusageThread is RUSAGE_THREAD of getrusage(2), which the syscall packages lack.
const rusageThread = 1

func newProbe(cpu int) *probe {
	p := &probe{base: time.Now(), current: new(Window), cpu: cpu}
	p.next.Store(p.current)
	return p
}

// Receive implements fastpath.Link.
func (p *probe) Receive([]fastpath.Desc) int {
	now := uint64(time.Since(p.base))
	gap := now - p.last
	p.last = now
	p.current.Steps++
	if gap > interesting {
		p.note(gap)
	}
	if next := p.next.Load(); next != p.current {
		p.current.Nanos = now - p.began
		p.finished.Store(p.current)
		p.current, p.began = next, now
	}
	return 0
}

// Long implements fastpath.Link.
func (p *probe) Long() bool { return false }

// note asks the kernel what became of the thread in a gap. x/sys calls getrusage without
// telling the scheduler (RawSyscall), so asking is no occasion to lose the P.
func (p *probe) note(gap uint64) {
	before := p.used
	_ = unix.Getrusage(rusageThread, &p.used) // cannot fail
	var cpu uint32
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno == 0 &&
		int(cpu) != p.cpu {
		p.current.Elsewhere++
	}
	tid := unix.Gettid()
	moved := tid != p.tid
	if moved { // another thread's counters: they say nothing of this gap
		p.tid = tid
		p.current.Moves++
	}
	p.current.gap(gap, moved || p.used.Nvcsw != before.Nvcsw, p.used.Nivcsw != before.Nivcsw)
}

// take begins a new window and returns the one before. One goroutine calls it.
func (p *probe) take() *Window {
	old := p.next.Load()
	p.next.Store(new(Window))
	for p.finished.Load() != old {
		time.Sleep(100 * time.Microsecond) // the worker may be in a gap
	}
	return old
}
