//go:build unix

package headertest

import (
	"os"
	"syscall"
	"testing"
)

// Guarded returns n bytes. Who reads or writes behind them, or before them where n is a multiple
// of the page's size, faults: of assembly neither the compiler nor the race detector would notice
// it.
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
