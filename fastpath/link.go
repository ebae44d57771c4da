package fastpath

import "sluice.dev/sluice/nat/header"

// Desc is a frame that carries a packet: where its first byte is in the UMEM,
// and how many there are. The holder of a Desc owns the frame.
type Desc = header.Frame

// Link moves whole batches of frames in and out of a worker. All links of one
// worker share one UMEM, so a frame received on one is transmitted on another
// without a copy. A Link belongs to one worker; nothing here is safe for two.
//
// The frame law: a frame is owned by exactly one of the worker's pool, a link's
// fill ring, its receive ring, the worker's batch or hold queue, a link's transmit
// ring, its completion ring. Every method documents which way ownership moves.
type Link interface {
	// Receive moves received packets to the caller, at most len(batch), in as many frames as they
	// have (Chains).
	Receive(batch []Desc) int
	// Refill moves free frames from the pool to the fill ring, as many as fit.
	Refill(p *Pool)
	// Transmit moves packets to the transmit ring, each with all its frames, and returns how
	// many it took, from the front. The rest stay the caller's.
	Transmit(batch []Desc) int
	// Long reports whether Transmit takes packets in several frames, and Receive may return some.
	Long() bool
	// Flush tells the kernel about what was transmitted, until all of it is taken
	// or the device refuses. Called once per worker step, also without new frames.
	Flush()
	// Unsent reports whether frames wait that only another Flush sends.
	Unsent() bool
	// Probe reads from the kernel whether the link can transmit, where Flush may have made no
	// system call for long.
	Probe()
	// Complete moves sent frames back to the pool.
	Complete(p *Pool)
	// Frames counts the frames the link and the kernel own: fill, receive,
	// transmit and completion rings and what is inside the device.
	Frames() int
	// Up reports whether the link can transmit now. A link that went down keeps its frames.
	Up() bool
	// FD is what poll waits on for received packets, or -1.
	FD() int
}

// Pool is a worker's stack of free frames: addresses of frame starts. Last in,
// first out, so that the next frame is likely still in cache.
type Pool struct {
	free      []uint64
	frameSize uint64
	total     int
}

// NewPool returns a pool that owns all frames of a UMEM of n frames of frameSize
// bytes, a power of two.
func NewPool(n int, frameSize int) *Pool {
	p := &Pool{free: make([]uint64, n), frameSize: uint64(frameSize), total: n}
	for i := range p.free {
		p.free[i] = uint64(n-1-i) * p.frameSize
	}
	return p
}

// NewPoolOf returns a pool that owns only these frames, by any address inside each: the others are
// in links and queues.
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

// Put gives a frame back, by any address inside it. More frames than the UMEM
// has is a broken frame law.
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

// PutAll is Put of many.
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

// NoLink stands where a link is missing: a device that was deleted, until it is
// back. It receives nothing and takes nothing.
type NoLink struct{}

// Receive implements Link.
func (NoLink) Receive([]Desc) int { return 0 }

// Refill implements Link.
func (NoLink) Refill(*Pool) {}

// Transmit implements Link.
func (NoLink) Transmit([]Desc) int { return 0 }

// Long implements Link. All packets are dropped because there is no link, long ones too.
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
