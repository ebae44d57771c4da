//go:build unix

package prefetch_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/prefetch"
)

// twins compares the stubs with their Go twins, which do nothing: the stubs accept any address,
// write nothing, and read only the given offsets.
type twins struct {
	memory  []byte // its lines are prefetched
	offsets []byte
}

const mostOffsets, mostStride = 32, 40

func newTwins(t testing.TB) *twins {
	return &twins{
		memory:  headertest.Guarded(t, 4096),
		offsets: headertest.Guarded(t, (mostOffsets-1)*mostStride+8),
	}
}

// agree prefetches n lines, whose offsets are stride bytes apart.
func (w *twins) agree(t *testing.T, data []byte, n int, stride uintptr) {
	t.Helper()
	offsets := w.offsets[len(w.offsets)-(n-1)*int(stride)-8:]
	copy(offsets, data)
	copy(w.memory, data)
	first := (*uint64)(unsafe.Pointer(&offsets[0]))
	before, offsetsBefore := slices.Clone(w.memory), slices.Clone(w.offsets)
	same := func(by string) {
		if !bytes.Equal(w.memory, before) || !bytes.Equal(w.offsets, offsetsBefore) {
			t.Fatalf("%s: %d offsets, %d bytes apart: something was written", by, n, stride)
		}
	}
	prefetch.WriteAllGo(&w.memory[0], first, stride, n)
	prefetch.ReadGo(&w.memory[0])
	same("Go")
	prefetch.WriteAll(&w.memory[0], first, stride, n)
	for i := range n {
		at := binary.LittleEndian.Uint64(offsets[i*int(stride):])
		prefetch.Read((*byte)(unsafe.Add(unsafe.Pointer(nil), at)))
		prefetch.Read(&w.memory[at%uint64(len(w.memory))])
	}
	same("assembly")
}

func TestTwins(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r, w := rand.New(rand.NewPCG(seed, 0)), newTwins(t)
	for n := 1; n <= mostOffsets; n++ {
		for stride := uintptr(8); stride <= mostStride; stride += 8 {
			data := make([]byte, len(w.offsets))
			for i := range data {
				data[i] = byte(r.Uint32())
			}
			w.agree(t, data, n, stride)
			w.agree(t, nil, n, stride)
		}
	}
}

func FuzzTwins(f *testing.F) {
	w := newTwins(f)
	f.Add([]byte{1, 2, 3}, uint(1), uint(8))
	f.Add(bytes.Repeat([]byte{0xff}, 500), uint(16), uint(16))
	f.Fuzz(func(t *testing.T, data []byte, n, stride uint) {
		w.agree(t, data, 1+int(n%mostOffsets), uintptr(8+stride%(mostStride-7)))
	})
}
