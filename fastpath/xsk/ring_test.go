package xsk

import (
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// heapOffsets is a layout like the kernel's (XDP_MMAP_OFFSETS on 6.18).
var heapOffsets = unix.XDPRingOffset{Producer: 0, Consumer: 128, Flags: 196, Desc: 320}

// heapRing returns ring memory on the heap, aligned for any slot, with both indexes at start.
func heapRing[T any](entries, start uint32) []byte {
	n := ringBytes[T](&heapOffsets, entries)
	words := make([]uint64, (n+7)/8)
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
	*(*uint32)(unsafe.Pointer(&mem[heapOffsets.Producer])) = start
	*(*uint32)(unsafe.Pointer(&mem[heapOffsets.Consumer])) = start
	return mem
}

// TestRingUnderRace simulates the kernel in a second goroutine, on heap memory: the race detector
// checks that the index stores publish the slots in both directions.
func TestRingUnderRace(t *testing.T) {
	const entries, total = 64, 200_000
	start := uint32(math.MaxUint32 - total/2) // the indices wrap half-way
	mem := heapRing[unix.XDPDesc](entries, start)
	p := newProducer[unix.XDPDesc](mem, &heapOffsets, entries)
	c := newConsumer[unix.XDPDesc](mem, &heapOffsets, entries)
	go func() {
		for sent := uint32(0); sent < total; {
			n := p.reserve(min(17, total-sent))
			for i := range n {
				*p.at(i) = unix.XDPDesc{Addr: uint64(sent + i), Len: ^(sent + i)}
			}
			p.submit(n)
			sent += n
			if n == 0 {
				runtime.Gosched()
			}
		}
	}()
	for got := uint32(0); got < total; {
		n := c.peek(23)
		for i := range n {
			if d := *c.at(i); d.Addr != uint64(got+i) || d.Len != ^(got+i) {
				t.Fatalf("entry %d is %+v", got+i, d)
			}
		}
		c.release(n)
		got += n
		if n == 0 {
			runtime.Gosched()
		}
	}
	if n := c.pending(); n != 0 {
		t.Errorf("%d entries pending in an empty ring", n)
	}
}

func TestRingCountsAcrossTheWrap(t *testing.T) {
	for _, start := range []uint32{0, 5, math.MaxUint32 - 3, math.MaxUint32} {
		mem := heapRing[uint64](8, start)
		p := newProducer[uint64](mem, &heapOffsets, 8)
		c := newConsumer[uint64](mem, &heapOffsets, 8)
		for round := range uint64(5) {
			if n := p.reserve(100); n != 8 {
				t.Fatalf("start %d: an empty ring has %d free slots, want 8", start, n)
			}
			for i := range uint32(6) {
				*p.at(i) = round*10 + uint64(i)
			}
			p.submit(6)
			if n := p.reserve(100); n != 2 {
				t.Errorf("start %d: %d free slots beside 6 entries, want 2", start, n)
			}
			if n := p.untaken(); n != 6 {
				t.Errorf("start %d: %d untaken, want 6", start, n)
			}
			if n := c.peek(4); n != 4 {
				t.Errorf("start %d: peek(4) is %d", start, n)
			}
			if n := c.peek(100); n != 6 {
				t.Errorf("start %d: peek is %d, want 6", start, n)
			}
			for i := range uint32(6) {
				if v := *c.at(i); v != round*10+uint64(i) {
					t.Errorf("start %d: entry %d is %d", start, i, v)
				}
			}
			c.release(6)
			if n := c.peek(1); n != 0 {
				t.Errorf("start %d: %d entries after the last", start, n)
			}
		}
	}
}

// TestRingStoresOnce counts index stores: a batch must cost one, an empty batch none.
func TestRingStoresOnce(t *testing.T) {
	mem := heapRing[uint64](8, 0)
	p := newProducer[uint64](mem, &heapOffsets, 8)
	word := (*uint32)(unsafe.Pointer(&mem[heapOffsets.Producer]))
	p.reserve(3)
	for i := range uint32(3) {
		*p.at(i) = 1
		if atomic.LoadUint32(word) != 0 {
			t.Fatal("the producer's index moved before submit")
		}
	}
	p.submit(3)
	if got := atomic.LoadUint32(word); got != 3 {
		t.Fatalf("producer is %d after submit(3)", got)
	}
	*word = 77 // another write would show
	p.submit(0)
	if *word != 77 {
		t.Fatal("submit(0) wrote the index")
	}
	c := newConsumer[uint64](mem, &heapOffsets, 8)
	cons := (*uint32)(unsafe.Pointer(&mem[heapOffsets.Consumer]))
	*cons = 78
	c.release(0)
	if *cons != 78 {
		t.Fatal("release(0) wrote the index")
	}
}

func TestNeedWakeup(t *testing.T) {
	mem := heapRing[uint64](8, 0)
	p := newProducer[uint64](mem, &heapOffsets, 8)
	if p.needWakeup() {
		t.Error("need-wakeup in fresh memory")
	}
	*(*uint32)(unsafe.Pointer(&mem[heapOffsets.Flags])) = unix.XDP_RING_NEED_WAKEUP
	if !p.needWakeup() {
		t.Error("need-wakeup not seen")
	}
}

func TestRingRefusesBadMemory(t *testing.T) {
	for name, f := range map[string]func(){
		"not a power of two": func() { newProducer[uint64](heapRing[uint64](8, 0), &heapOffsets, 6) },
		"no entries":         func() { newProducer[uint64](heapRing[uint64](8, 0), &heapOffsets, 0) },
		"too short":          func() { newConsumer[unix.XDPDesc](heapRing[uint64](8, 0), &heapOffsets, 8) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		})
	}
}

func BenchmarkRing(b *testing.B) {
	mem := heapRing[unix.XDPDesc](2048, 0)
	p := newProducer[unix.XDPDesc](mem, &heapOffsets, 2048)
	c := newConsumer[unix.XDPDesc](mem, &heapOffsets, 2048)
	for b.Loop() {
		n := p.reserve(64)
		for i := range n {
			*p.at(i) = unix.XDPDesc{Addr: uint64(i), Len: 60}
		}
		p.submit(n)
		m := c.peek(64)
		for i := range m {
			if c.at(i).Addr != uint64(i) {
				b.Fatal("lost")
			}
		}
		c.release(m)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/frame")
}
