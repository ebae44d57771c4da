//go:build unix

package headertest

import (
	"os"
	"syscall"
	"testing"
)

// Guarded returns n bytes. An access after them, or before them if n is a multiple of the page
// size, faults. Neither the compiler nor the race detector detects such accesses in assembly.
func Guarded(t testing.TB, n int) []byte {
	page := os.Getpagesize()
	end := page + (n+page-1)/page*page
	b, err := syscall.Mmap(-1, 0, end+page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(b) })
	for _, guard := range [][]byte{b[:page], b[end:]} {
		if err := syscall.Mprotect(guard, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return b[end-n : end : end]
}
