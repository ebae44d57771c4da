package fastpath

import "sluice.dev/sluice/nat/header"

// Desc is a frame that carries a packet: the UMEM offset of the packet's first byte, and its length
// in bytes. The holder of a Desc owns the frame.
type Desc = header.Frame

// Link moves batches of frames in and out of a worker. All links of a worker share one UMEM, so a
// frame received on one is transmitted on another without a copy. A Link belongs to one worker; no
// method is safe for concurrent use.
//
// The frame law: exactly one owner has each frame: the worker's pool, a link's fill ring, receive
// ring, transmit ring or completion ring, or the worker's batch or hold queues. Every method
// documents how ownership moves.
type Link interface {
	// Receive moves up to len(batch) received packets, with all their frames (Chains), to the
	// caller, and returns their number.
	Receive(batch []Desc) int
	// Refill moves free frames from the pool to the fill ring, as many as fit.
	Refill(p *Pool)
	// Transmit moves packets from the front of batch, each with all its frames, to the transmit
	// ring, and returns how many it took. The caller keeps the others.
	Transmit(batch []Desc) int
	// Long reports whether Transmit takes packets in several frames, and Receive may return some.
	Long() bool
	// Flush makes the kernel send the transmitted frames, until it has taken all of them or the
	// device accepts no more. The worker calls it once per step, also without new frames.
	Flush()
	// Unsent reports whether frames wait for another Flush.
	Unsent() bool
	// Probe asks the kernel whether the link can transmit: Flush may have made no system call for a
	// long time.
	Probe()
	// Complete moves sent frames back to the pool.
	Complete(p *Pool)
	// Frames counts the frames that the link and the kernel own: in the fill, receive, transmit and
	// completion rings, and in the device.
	Frames() int
	// Up reports whether the link can transmit now. A link that went down keeps its frames.
	Up() bool
	// FD returns the descriptor that poll(2) waits on for received packets, or -1.
	FD() int
}

// Pool is a worker's stack of free frames, by their start addresses. It is last in, first out, so
// that the next frame is likely still in the cache.
type Pool struct {
	free      []uint64
	frameSize uint64
	total     int
}

// NewPool returns a pool that owns all n frames of a UMEM. frameSize is in bytes, and a power of
// two.
func NewPool(n int, frameSize int) *Pool {
	p := &Pool{free: make([]uint64, n), frameSize: uint64(frameSize), total: n}
	for i := range p.free {
		p.free[i] = uint64(n-1-i) * p.frameSize
	}
	return p
}

// NewPoolOf returns a pool that owns only the frames in free, which has any address inside each.
// Links and queues have the other frames.
func NewPoolOf(n, frameSize int, free []uint64) *Pool {
	p := &Pool{free: make([]uint64, 0, n), frameSize: uint64(frameSize), total: n}
	p.PutAll(free)
	return p
}

// Get takes a frame: the address of its first byte. ok is false if none is free.
func (p *Pool) Get() (addr uint64, ok bool) {
	if len(p.free) == 0 {
		return 0, false
	}
	addr = p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	return addr, true
}

// Put gives a frame back, by any address inside it. It panics if the pool would have more frames
// than the UMEM, which breaks the frame law.
func (p *Pool) Put(addr uint64) {
	if len(p.free) == p.total {
		panic(
			"fastpath: a frame was freed twice: more free frames than the UMEM has; find the link that returned " +
				"it while it was in flight",
		)
	}
	p.free = append(p.free, addr&^(p.frameSize-1))
}

// Take takes up to len(addrs) frames, and returns how many it got.
func (p *Pool) Take(addrs []uint64) int {
	n := min(len(addrs), len(p.free))
	copy(addrs, p.free[len(p.free)-n:])
	p.free = p.free[:len(p.free)-n]
	return n
}

// PutAll is Put for many frames.
func (p *Pool) PutAll(addrs []uint64) {
	n := len(p.free)
	if n+len(addrs) > p.total {
		panic(
			"fastpath: a frame was freed twice: more free frames than the UMEM has; find the link that returned " +
				"it while it was in flight",
		)
	}
	p.free = p.free[:n+len(addrs)]
	for i, addr := range addrs {
		p.free[n+i] = addr &^ (p.frameSize - 1)
	}
}

// Free counts the free frames.
func (p *Pool) Free() int { return len(p.free) }

// Total counts all frames of the UMEM.
func (p *Pool) Total() int { return p.total }

// NoLink takes the place of a missing link, whose device was deleted, until the device exists
// again. It receives and transmits no packets.
type NoLink struct{}

// Receive implements Link.
func (NoLink) Receive([]Desc) int { return 0 }

// Refill implements Link.
func (NoLink) Refill(*Pool) {}

// Transmit implements Link.
func (NoLink) Transmit([]Desc) int { return 0 }

// Long implements Link. It returns true, so that long packets are dropped as LinkDown like all
// others.
func (NoLink) Long() bool { return true }

// Flush implements Link.
func (NoLink) Flush() {}

// Unsent implements Link.
func (NoLink) Unsent() bool { return false }

// Probe implements Link.
func (NoLink) Probe() {}

// Complete implements Link.
func (NoLink) Complete(*Pool) {}

// Frames implements Link.
func (NoLink) Frames() int { return 0 }

// Up implements Link.
func (NoLink) Up() bool { return false }

// FD implements Link.
func (NoLink) FD() int { return -1 }

// BatchSize is the maximum number of packets in a batch. It is large enough to make the fixed cost
// of a step, and of filling and emptying the pipeline, small for each packet.
const BatchSize = 256
