package xsk

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A ring has one producer and one consumer, and for each a shared word with its index. The indexes
// count from 0 to 2^32-1 and wrap; the slot of index i is i & mask. The producer writes slots, then
// stores its word; the consumer loads that word, then reads the slots, then stores its own word,
// which hands the slots back. Go's atomics are sequentially consistent, which gives the release and
// acquire that the kernel's side pairs with (net/xdp/xsk_queue.h).
//
// Each side keeps its own index in local, and the other's index as last loaded in seen. It loads
// the shared word only if seen is not enough, and stores its own once per batch. That store is an
// XCHG on amd64, so a later load of the need-wakeup flag is not reordered before it.
//
// The caller provides the memory: a mapping from the kernel, or heap memory in tests, where a
// second goroutine simulates the kernel under the race detector.

// shared is the part of a ring that both sides map.
type shared[T any] struct {
	producer, consumer, flags *uint32
	slots                     []T
	mask                      uint32
}

// ringBytes returns the size of a ring's mapping.
func ringBytes[T any](off *unix.XDPRingOffset, entries uint32) int {
	var slot T
	return int(off.Desc) + int(entries)*int(unsafe.Sizeof(slot))
}

// newShared returns a ring of entries slots, a power of two, in mem.
func newShared[T any](mem []byte, off *unix.XDPRingOffset, entries uint32) shared[T] {
	if entries == 0 || entries&(entries-1) != 0 || len(mem) < ringBytes[T](off, entries) {
		panic("xsk: a ring needs a power of two of slots, and memory that holds them")
	}
	// Safety: the offsets are from the kernel (XDP_MMAP_OFFSETS), and in range of mem by the check
	// above; the kernel aligns words and slots. If mem is heap memory, the ring keeps it reachable;
	// a mapping outlives the ring, see Socket.Close.
	return shared[T]{
		producer: (*uint32)(unsafe.Pointer(&mem[off.Producer])),
		consumer: (*uint32)(unsafe.Pointer(&mem[off.Consumer])),
		flags:    (*uint32)(unsafe.Pointer(&mem[off.Flags])),
		slots:    unsafe.Slice((*T)(unsafe.Pointer(&mem[off.Desc])), entries),
		mask:     entries - 1,
	}
}

// needWakeup reports whether the kernel needs a system call to process the ring.
func (r *shared[T]) needWakeup() bool {
	return atomic.LoadUint32(r.flags)&unix.XDP_RING_NEED_WAKEUP != 0
}

// pending returns the number of entries that the producer has submitted and the consumer has not
// released. Either side may call it; the result is exact only if the other side is idle.
func (r *shared[T]) pending() uint32 {
	return atomic.LoadUint32(r.producer) - atomic.LoadUint32(r.consumer)
}

// producer is the writing side, used for fill and transmit rings.
type producer[T any] struct {
	shared[T]
	local uint32 // next slot to write
	seen  uint32 // consumer's index when last loaded
}

func newProducer[T any](mem []byte, off *unix.XDPRingOffset, entries uint32) producer[T] {
	r := producer[T]{shared: newShared[T](mem, off, entries)}
	r.local = atomic.LoadUint32(r.producer)
	r.seen = atomic.LoadUint32(r.consumer)
	return r
}

// reserve returns how many slots can be written now, at most want.
func (r *producer[T]) reserve(want uint32) uint32 {
	free := r.mask + 1 - (r.local - r.seen)
	if free < want {
		// Pairs with the kernel's store-release of the consumer: the kernel has read a slot before
		// it hands it back.
		r.seen = atomic.LoadUint32(r.consumer)
		free = r.mask + 1 - (r.local - r.seen)
	}
	return min(free, want)
}

// at returns the i-th reserved slot.
func (r *producer[T]) at(i uint32) *T { return &r.slots[(r.local+i)&r.mask] }

// submit hands the first n reserved slots to the consumer.
func (r *producer[T]) submit(n uint32) {
	if n == 0 {
		return
	}
	r.local += n
	// Publishes the slots; pairs with the kernel's load-acquire of the producer.
	atomic.StoreUint32(r.producer, r.local)
}

// untaken returns the number of entries that the consumer has not released.
func (r *producer[T]) untaken() uint32 { return r.local - atomic.LoadUint32(r.consumer) }

// consumer is the reading side, used for receive and completion rings.
type consumer[T any] struct {
	shared[T]
	local uint32 // next slot to read
	seen  uint32 // producer's index when last loaded
}

func newConsumer[T any](mem []byte, off *unix.XDPRingOffset, entries uint32) consumer[T] {
	r := consumer[T]{shared: newShared[T](mem, off, entries)}
	r.local = atomic.LoadUint32(r.consumer)
	r.seen = atomic.LoadUint32(r.producer)
	return r
}

// peek returns how many entries can be read now, at most want.
func (r *consumer[T]) peek(want uint32) uint32 {
	n := r.seen - r.local
	if n < want {
		// Pairs with the kernel's store-release of the producer: the kernel has written the slots
		// before it.
		r.seen = atomic.LoadUint32(r.producer)
		n = r.seen - r.local
	}
	return min(n, want)
}

// at returns the i-th entry that peek counted.
func (r *consumer[T]) at(i uint32) *T { return &r.slots[(r.local+i)&r.mask] }

// release hands the first n peeked slots back to the producer.
func (r *consumer[T]) release(n uint32) {
	if n == 0 {
		return
	}
	r.local += n
	// Publishes that the slots were read; the kernel's producer reads this word
	// before it writes them again.
	atomic.StoreUint32(r.consumer, r.local)
}
