package xsk

import (
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
)

// A packet that is longer than a frame is received and sent as several consecutive descriptors, all
// except the last with XDP_PKT_CONTD (Documentation/networking/af_xdp.rst, "Multi-Buffer Support").
// For the worker it is one Desc, whose Len is 0, and a chain in the UMEM's table.

// partial is a packet whose last frame is not taken out of the receive ring yet: a batch may end
// between two frames. Its frames belong to the link, and are marked as kept in owners, until the
// worker gets the packet.
type partial struct {
	head   fastpath.Desc
	last   uint64 // address of the last frame taken
	frames int    // 0: there is none
}

// receiveLong is Receive for a socket that accepts packets in several frames.
func (s *Socket) receiveLong(batch []fastpath.Desc) int {
	n := s.rx.peek(uint32(len(batch)))
	got := 0
	for i := range n {
		d := s.rx.at(i)
		frame := d.Addr >> s.frameShift
		if !s.owners.take(frame, s.inFill) {
			s.counters.ForeignFrames++
			continue
		}
		more := d.Options&unix.XDP_PKT_CONTD != 0
		if !more && s.partial.frames == 0 && d.Len != 0 {
			batch[got] = fastpath.Desc{Addr: d.Addr, Len: d.Len}
			s.frames--
			got++
			continue
		}
		s.owners[frame] = kept
		s.extend(d.Addr, d.Len)
		if !more {
			batch[got] = s.whole()
			got++
		}
	}
	s.rx.release(n)
	return got
}

// extend appends a frame to the partial packet.
func (s *Socket) extend(addr uint64, bytes uint32) {
	p := &s.partial
	if p.frames == 0 {
		p.head = s.umem.chains.Begin(addr, bytes)
	} else {
		s.umem.chains.Extend(p.last, addr, bytes)
	}
	p.last = addr
	p.frames++
}

// whole moves the partial packet, which is now complete, to the worker.
func (s *Socket) whole() fastpath.Desc {
	p := &s.partial
	for addr, more := p.head.Addr, true; more; addr, more = s.umem.chains.Next(addr) {
		s.owners[addr>>s.frameShift] = userSpace
	}
	s.frames -= p.frames
	p.frames = 0
	return p.head
}

// takePartial appends the frames of the partial packet, which will never be complete, to frames and
// removes it.
func (s *Socket) takePartial(frames []uint64) []uint64 {
	for d, more := s.partial.head, s.partial.frames > 0; more; {
		var first fastpath.Desc
		first, d, more = s.umem.chains.Take(d)
		frames = append(frames, first.Addr)
	}
	s.partial.frames = 0
	return frames
}

// transmitLong continues a Transmit at the first packet that has several frames; the packets before
// it are written to the ring, but not submitted. All frames of a packet go into the ring, or none.
func (s *Socket) transmitLong(batch []fastpath.Desc, first uint32) int {
	chains, slots, packets := s.umem.chains, first, int(first)
	for _, d := range batch[first:] {
		need := slots + uint32(chains.Buffers(d))
		if s.tx.reserve(need) < need {
			break
		}
		for more := true; more; slots++ {
			one := d
			if more = false; d.Len == 0 {
				one, d, more = chains.Take(d)
			}
			s.put(slots, one, more)
		}
		packets++
	}
	s.tx.submit(slots)
	s.frames += int(slots)
	return packets
}

// put writes a descriptor into a slot of the transmit ring.
func (s *Socket) put(slot uint32, d fastpath.Desc, more bool) {
	frame := d.Addr >> s.frameShift
	if d.Len == 0 || (d.Addr+uint64(d.Len)-1)>>s.frameShift != frame {
		panic("xsk: a packet to transmit has an empty frame or extends beyond one; find the code that set its length")
	}
	s.owners.give(frame, s.inTx)
	options := uint32(0)
	if more {
		options = unix.XDP_PKT_CONTD
	}
	*s.tx.at(slot) = unix.XDPDesc{Addr: d.Addr, Len: d.Len, Options: options}
}

// Long implements fastpath.Link.
func (s *Socket) Long() bool { return s.long }
