package pipeline

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// hugeMemory maps zeroed memory, on huge pages if the kernel provides them, as for the gateway's
// tables. Every page is touched, so that no measurement includes page faults.
func hugeMemory(size int64) ([]byte, error) {
	const huge = 2 << 20
	size = (size + huge - 1) &^ (huge - 1)
	mem, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d MB: %w (is there that much memory?)", size>>20, err)
	}
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // small pages work as well, only slower
	for i := 0; i < len(mem); i += 4096 {
		mem[i] = 0
	}
	return mem, nil
}

func unmap(mem []byte) {
	if mem != nil {
		_ = unix.Munmap(mem) // cannot fail for a mapping of Mmap
	}
}
