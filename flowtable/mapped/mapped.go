// Package mapped provides memory for tables that outlives the process: a file on tmpfs, locked
// against other processes and mapped as a whole.
//
//	path ──open, lock──> the file at path ──size, reserve, map──> File.Mem
//
// Only one process at a time has a file open, from Open to Close or to the end of the process. The
// caller defines the contents; a process that opens a file after a crash finds them as the last
// store left them.
package mapped

import (
	"errors"
	"fmt"
	"unsafe"
)

// ErrInUse means that another process has the file open.
var ErrInUse = errors.New("file is in use by another process")

// NewFile is the reason that Open returns for a file that was empty: nothing was lost.
const NewFile = "new file"

// Slice returns n values of T in mem, from an offset in bytes on. T must not contain pointers.
// Slice panics if the values do not fit or are not aligned: then the caller's layout is wrong.
func Slice[T any](mem []byte, offset int64, n int) []T {
	var t T
	size, align := int64(unsafe.Sizeof(t)), uintptr(unsafe.Alignof(t))
	if n < 1 || size == 0 || offset < 0 || int64(n) > (int64(len(mem))-offset)/size {
		panic(fmt.Sprintf(
			"mapped: %d values of %d bytes at %d do not fit in %d bytes: fix the caller's layout", n, size, offset,
			len(mem),
		))
	}
	if (uintptr(unsafe.Pointer(&mem[0]))+uintptr(offset))%align != 0 {
		panic(fmt.Sprintf("mapped: offset %d is not aligned to %d bytes: fix the caller's layout", offset, align))
	}
	// Safety: inside mem and aligned, as just checked. T has no pointers, so the garbage collector
	// does not scan the memory.
	return unsafe.Slice((*T)(unsafe.Pointer(&mem[offset])), n)
}
