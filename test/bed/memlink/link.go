// Package memlink is a fastpath.Link without a kernel: frames are injected and
// taken by the caller. Tests, fuzzing, benchmarks and the replay of captures drive
// workers with it. It keeps the rings of a real link (fill, receive, transmit,
// completion), so the frame law means the same.
package memlink

import "sluice.dev/sluice/fastpath"

// headroom is where a packet starts in its frame, as with AF_XDP.
const headroom = 256

// Link is one link. It is not safe for concurrent use.
type Link struct {
	mem       []byte
	frameSize uint64
	fill      ring[uint64]
	rx        ring[fastpath.Desc]
	tx        ring[fastpath.Desc]
	done      ring[uint64]
	down      bool
	burst     int              // the most packets that Receive returns, if not 0
	chains    *fastpath.Chains // or nil
	// Frames of the packets in rx and tx beyond one each.
	rxMore, txMore int
}

// New returns a link over a UMEM with rings of the given size each. UMEM frames are
// frameSize bytes, a power of two.
func New(mem []byte, frameSize, size int) *Link {
	return &Link{
		mem: mem, frameSize: uint64(frameSize),
		fill: newRing[uint64](size), rx: newRing[fastpath.Desc](size),
		tx: newRing[fastpath.Desc](size), done: newRing[uint64](size),
	}
}

// Chain makes the link take packets in several frames, which are told of in a table of the same
// UMEM.
func (l *Link) Chain(c *fastpath.Chains) { l.chains = c }

// Inject delivers a packet into a frame of the fill ring, or into several where the link takes
// that. It reports false, as a NIC would drop, if there are none, if the packet does not fit, or if
// the receive ring is full.
func (l *Link) Inject(packet []byte) bool {
	if room := int(l.frameSize - headroom); l.chains != nil && len(packet) > room {
		var parts [][]byte
		for ; len(packet) > room; packet = packet[room:] {
			parts = append(parts, packet[:room])
		}
		return l.InjectParts(append(parts, packet)...)
	}
	if l.fill.n == 0 || l.rx.free() <= l.rxMore || uint64(len(packet)) > l.frameSize-headroom {
		return false
	}
	addr := l.fill.pop() + headroom
	copy(l.mem[addr:], packet)
	l.rx.push(fastpath.Desc{Addr: addr, Len: uint32(len(packet))})
	return true
}

// InjectParts is Inject of a packet in the buffers that it is to have, two or more.
func (l *Link) InjectParts(parts ...[]byte) bool {
	if l.fill.n < len(parts) || l.rx.free()-l.rxMore < len(parts) {
		return false
	}
	var head fastpath.Desc
	var last uint64
	for i, part := range parts {
		addr := l.fill.pop() + headroom
		copy(l.mem[addr:addr+l.frameSize-headroom], part)
		if i == 0 {
			head = l.chains.Begin(addr, uint32(len(part)))
		} else {
			l.chains.Extend(last, addr, uint32(len(part)))
		}
		last = addr
	}
	l.rx.push(head)
	l.rxMore += len(parts) - 1
	return true
}

// complete takes the oldest transmitted packet apart, and appends it to buf if it is wanted. It is
// false if there is none, or no room for its frames in the completion ring.
func (l *Link) complete(buf []byte, wanted bool) ([]byte, bool) {
	if l.tx.n == 0 || l.done.free() < l.buffers(l.tx.first()[0]) {
		return buf, false
	}
	for d := l.tx.pop(); ; l.txMore-- {
		first, more := d, false
		if d.Len == 0 && l.chains != nil {
			first, d, more = l.chains.Take(d)
		}
		if wanted {
			buf = append(buf, l.mem[first.Addr:first.Addr+uint64(first.Len)]...)
		}
		if l.done.push(first.Addr); !more {
			return buf, true
		}
	}
}

// buffers counts the frames of a packet.
func (l *Link) buffers(d fastpath.Desc) int {
	if l.chains == nil {
		return 1
	}
	return l.chains.Buffers(d)
}

// Take removes the oldest transmitted packet and appends it to buf, or returns
// false if there is none. Its frame is then complete.
func (l *Link) Take(buf []byte) ([]byte, bool) { return l.complete(buf, true) }

// Loop completes all transmitted packets unread and returns their number.
func (l *Link) Loop() (n int) {
	if l.chains != nil {
		for {
			if _, ok := l.complete(nil, false); !ok {
				return n
			}
			n++
		}
	}
	for l.tx.n > 0 && l.done.free() > 0 {
		l.done.push(l.tx.pop().Addr)
		n++
	}
	return n
}

// SetUp takes the link down or up.
func (l *Link) SetUp(up bool) { l.down = !up }

// SetBurst makes Receive return at most n packets at a time; 0 takes that back.
func (l *Link) SetBurst(n int) { l.burst = n }

// Receive implements fastpath.Link.
func (l *Link) Receive(batch []fastpath.Desc) int {
	if l.burst > 0 {
		batch = batch[:min(len(batch), l.burst)]
	}
	n := min(len(batch), l.rx.n)
	taken := copy(batch[:n], l.rx.first())
	l.rx.drop(taken)
	copy(batch[taken:n], l.rx.first())
	l.rx.drop(n - taken)
	if l.rxMore > 0 {
		for _, d := range batch[:n] {
			l.rxMore -= l.buffers(d) - 1
		}
	}
	return n
}

// Refill implements fastpath.Link.
func (l *Link) Refill(p *fastpath.Pool) {
	for l.fill.free() > 0 {
		n := p.Take(l.fill.room())
		if n == 0 {
			return
		}
		l.fill.n += n
	}
}

// Transmit implements fastpath.Link.
func (l *Link) Transmit(batch []fastpath.Desc) int {
	if l.chains != nil {
		return l.transmitChains(batch)
	}
	n := min(len(batch), l.tx.free())
	for done := 0; done < n; {
		m := copy(l.tx.room(), batch[done:n])
		l.tx.n += m
		done += m
	}
	return n
}

// transmitChains is Transmit where a packet takes as many places of the ring as it has frames.
func (l *Link) transmitChains(batch []fastpath.Desc) (n int) {
	for _, d := range batch {
		frames := l.buffers(d)
		if l.tx.free()-l.txMore < frames {
			break
		}
		l.tx.push(d)
		l.txMore += frames - 1
		n++
	}
	return n
}

// Long implements fastpath.Link.
func (l *Link) Long() bool { return l.chains != nil }

// Flush implements fastpath.Link.
func (l *Link) Flush() {}

// Unsent implements fastpath.Link. Frames leave when the test takes them, not by Flush.
func (l *Link) Unsent() bool { return false }

// Probe implements fastpath.Link.
func (l *Link) Probe() {}

// Complete implements fastpath.Link.
func (l *Link) Complete(p *fastpath.Pool) {
	for l.done.n > 0 {
		first := l.done.first()
		p.PutAll(first)
		l.done.drop(len(first))
	}
}

// Frames implements fastpath.Link.
func (l *Link) Frames() int { return l.fill.n + l.rx.n + l.rxMore + l.tx.n + l.txMore + l.done.n }

// Up implements fastpath.Link.
func (l *Link) Up() bool { return !l.down }

// FD implements fastpath.Link.
func (l *Link) FD() int { return -1 }

// ring is a fixed queue.
type ring[T any] struct {
	v    []T
	head int
	n    int
}

func newRing[T any](size int) ring[T] { return ring[T]{v: make([]T, size)} }

func (r *ring[T]) free() int { return len(r.v) - r.n }

func (r *ring[T]) push(v T) {
	i := r.head + r.n
	if i >= len(r.v) {
		i -= len(r.v)
	}
	r.v[i] = v
	r.n++
}

// first returns the entries of the ring up to the end of its memory.
func (r *ring[T]) first() []T { return r.v[r.head:min(r.head+r.n, len(r.v))] }

// room is the free memory behind the last, up to the end of the memory.
func (r *ring[T]) room() []T {
	if tail := r.head + r.n; tail < len(r.v) {
		return r.v[tail:]
	}
	return r.v[r.head+r.n-len(r.v) : r.head]
}

// drop takes the first n away, all of which first returned.
func (r *ring[T]) drop(n int) {
	r.n -= n
	if r.head += n; r.head == len(r.v) {
		r.head = 0
	}
}

func (r *ring[T]) pop() T {
	v := r.v[r.head]
	r.head++
	if r.head == len(r.v) {
		r.head = 0
	}
	r.n--
	return v
}
