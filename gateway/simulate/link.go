package simulate

import "sluice.dev/sluice/fastpath"

// headroom is the offset of a packet in its frame, as with AF_XDP (XDP_PACKET_HEADROOM).
const headroom = 256

// link is the only link of a simulated worker. It carries one received packet. The frames
// of transmitted packets return to the pool at the end of the step.
type link struct {
	fastpath.NoLink // it never waits, and has no rings

	mem       []byte
	pool      *fastpath.Pool
	chains    *fastpath.Chains
	frameSize int

	received []fastpath.Desc
	sent     []fastpath.Desc
}

// inject puts a packet into frames of the pool. It returns false if there are not enough.
func (l *link) inject(packet []byte) bool {
	room := l.frameSize - headroom
	if l.pool.Free() < (len(packet)+room-1)/room {
		return false
	}
	var head fastpath.Desc
	for last, begun := uint64(0), false; ; begun = true {
		addr, _ := l.pool.Get()
		addr += headroom
		n := copy(l.mem[addr:addr+uint64(room)], packet)
		packet = packet[n:]
		switch {
		case !begun && len(packet) == 0:
			head = fastpath.Desc{Addr: addr, Len: uint32(n)}
		case !begun:
			head = l.chains.Begin(addr, uint32(n))
		default:
			l.chains.Extend(last, addr, uint32(n))
		}
		if last = addr; len(packet) == 0 {
			l.received = append(l.received, head)
			return true
		}
	}
}

// Receive implements fastpath.Link.
func (l *link) Receive(batch []fastpath.Desc) int {
	n := copy(batch, l.received)
	l.received = l.received[:copy(l.received, l.received[n:])]
	return n
}

// Transmit implements fastpath.Link.
func (l *link) Transmit(batch []fastpath.Desc) int {
	l.sent = append(l.sent, batch...)
	return len(batch)
}

// Complete implements fastpath.Link.
func (l *link) Complete(p *fastpath.Pool) {
	for _, d := range l.sent {
		l.chains.Free(p, d)
	}
	l.sent = l.sent[:0]
}

// Frames implements fastpath.Link.
func (l *link) Frames() (n int) {
	for _, list := range [...][]fastpath.Desc{l.received, l.sent} {
		for _, d := range list {
			n += l.chains.Buffers(d)
		}
	}
	return n
}

// Up implements fastpath.Link.
func (l *link) Up() bool { return true }
