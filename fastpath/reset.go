package fastpath

import (
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
)

// sendReset answers a segment of a connection that is not known with an RST, if the rate allows it.
// It must run before the packet is rewritten. The segment's checksum is not verified: an RST that a
// damaged one causes has a wrong sequence number, or reaches no connection.
func (w *Worker) sendReset(d Desc, p *header.Packet) {
	if !w.resets.Allow(uint64(w.planner.Now)) {
		w.n.resetsLimited++
		return
	}
	addr, ok := w.pool.Get()
	if !ok {
		w.n.resetsLimited++
		return
	}
	start := addr + frameHeadroom
	end := addr + w.pool.frameSize
	n, ok := nat.BuildReset(w.mem[start:end:end], w.frame(d), p, w.c.TTL)
	if !ok {
		w.pool.Put(addr)
		return
	}
	w.n.resets++
	w.answer(Desc{Addr: start, Len: uint32(n)}, p)
}
