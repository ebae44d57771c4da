package xsk

import (
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
)

var _ fastpath.Link = (*Socket)(nil)

// Receive implements fastpath.Link.
func (s *Socket) Receive(batch []fastpath.Desc) int {
	if s.long {
		return s.receiveLong(batch)
	}
	n := s.rx.peek(uint32(len(batch)))
	got := 0
	for i := range n {
		d := s.rx.at(i)
		if !s.owners.take(d.Addr>>s.frameShift, s.inFill) {
			s.counters.ForeignFrames++
			continue
		}
		batch[got] = fastpath.Desc{Addr: d.Addr, Len: d.Len}
		got++
	}
	s.rx.release(n)
	s.frames -= got
	return got
}

// Refill implements fastpath.Link.
func (s *Socket) Refill(p *fastpath.Pool) {
	n := s.fill.reserve(uint32(p.Free()))
	for i := range n {
		addr, _ := p.Get()
		s.owners.give(addr>>s.frameShift, s.inFill)
		*s.fill.at(i) = addr
	}
	s.fill.submit(n)
	s.frames += int(n)
	if n > 0 && s.fill.needWakeup() {
		s.wakeReceive()
	}
}

// Transmit implements fastpath.Link. It takes no packets while the link is down.
func (s *Socket) Transmit(batch []fastpath.Desc) int {
	if !s.up {
		return 0
	}
	n := s.tx.reserve(uint32(len(batch)))
	for i := range n {
		d := &batch[i]
		frame := d.Addr >> s.frameShift
		if d.Len == 0 {
			return s.transmitLong(batch, i)
		}
		// The kernel would accept such a descriptor and never complete it.
		if (d.Addr+uint64(d.Len)-1)>>s.frameShift != frame {
			panic("xsk: a packet to transmit extends beyond its frame; find the code that set its length")
		}
		s.owners.give(frame, s.inTx)
		*s.tx.at(i) = unix.XDPDesc{Addr: d.Addr, Len: d.Len}
	}
	s.tx.submit(n)
	s.frames += int(n)
	return int(n)
}

// Complete implements fastpath.Link.
func (s *Socket) Complete(p *fastpath.Pool) {
	for _, addr := range s.done {
		s.owners[addr>>s.frameShift] = userSpace
		p.Put(addr)
	}
	s.frames -= len(s.done)
	s.done = s.done[:0]

	n := s.completion.peek(s.completion.mask + 1)
	for i := range n {
		addr := *s.completion.at(i)
		if !s.owners.take(addr>>s.frameShift, s.inTx) {
			s.counters.ForeignFrames++
			continue
		}
		p.Put(addr)
		s.frames--
	}
	s.completion.release(n)
}

// stash makes room in the completion ring by moving frames to done. It returns how many frames it
// took out.
func (s *Socket) stash() uint32 {
	n := s.completion.peek(uint32(cap(s.done) - len(s.done)))
	for i := range n {
		addr := *s.completion.at(i)
		if !s.owners.take(addr>>s.frameShift, s.inTx) {
			s.counters.ForeignFrames++
			continue
		}
		s.owners[addr>>s.frameShift] = kept
		s.done = append(s.done, addr)
	}
	s.completion.release(n)
	return n
}

// Frames implements fastpath.Link.
func (s *Socket) Frames() int { return s.frames }

// Up implements fastpath.Link. The last system call has set it: Flush makes one for every batch,
// and occasionally without a batch.
func (s *Socket) Up() bool { return s.up }

// Gone reports whether the device was deleted. The socket then never carries a packet again: close
// it, and open another when the device exists again. Safe for any goroutine.
func (s *Socket) Gone() bool { return s.gone.Load() }

// FD implements fastpath.Link.
func (s *Socket) FD() int { return s.fd }
