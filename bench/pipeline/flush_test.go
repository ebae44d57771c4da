package pipeline

import (
	"bytes"
	"slices"
	"testing"

	"sluice.dev/sluice/nat/header/headertest"
)

const flushedBytes = 8192

// agreeFlush: neither flushLines nor its twin in Go writes anything or accesses memory behind the
// last line, which is not mapped.
func agreeFlush(t *testing.T, memory, data []byte, stride, n int) {
	t.Helper()
	copy(memory, data)
	first := len(memory) - 1
	if n > 0 {
		first -= (n - 1) * stride
	}
	before := slices.Clone(memory)
	flushLinesGo(&memory[first], uintptr(stride), uintptr(n))
	if !bytes.Equal(memory, before) {
		t.Fatalf("Go: %d lines, %d bytes apart: something was written", n, stride)
	}
	flushLines(&memory[first], uintptr(stride), uintptr(n))
	if !bytes.Equal(memory, before) {
		t.Fatalf("assembly: %d lines, %d bytes apart: something was written", n, stride)
	}
}

func TestFlushTwins(t *testing.T) {
	memory := headertest.Guarded(t, flushedBytes)
	for i := range memory {
		memory[i] = byte(i * 7)
	}
	for _, stride := range []int{1, 64, 100, 2048} {
		for n := range flushedBytes/stride + 1 {
			agreeFlush(t, memory, nil, stride, n)
		}
	}
}

func FuzzFlush(f *testing.F) {
	memory := headertest.Guarded(f, flushedBytes)
	f.Add([]byte("lines"), uint(64), uint(8))
	f.Add([]byte{}, uint(1), uint(0))
	f.Fuzz(func(t *testing.T, data []byte, stride, n uint) {
		apart := 1 + int(stride%4096)
		agreeFlush(t, memory, data, apart, int(n%uint(flushedBytes/apart+1)))
	})
}
