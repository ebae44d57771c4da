package flowtable

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// benchMemory returns memory like the daemon's: mapped, on huge pages if the kernel provides them,
// and populated, so that no page fault is measured.
func benchMemory(b *testing.B, size int64) []byte {
	mem, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { unix.Munmap(mem) })
	if err := unix.Madvise(mem, unix.MADV_HUGEPAGE); err != nil {
		b.Log("on small pages: ", err)
	}
	if err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE); err != nil {
		b.Fatal(err)
	}
	return mem
}

// threadTime returns the processor time that this thread has used.
func threadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // cannot fail on Linux
	return time.Duration(ts.Nano())
}
