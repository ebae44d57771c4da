package fastpath

import "sluice.dev/sluice/nat"

// sendReset answers a segment of an unknown connection with an RST, if the rate allows it. It must
// run before the packet is rewritten. The segment's checksum is not verified: an RST caused by a
// damaged segment has a wrong sequence number or belongs to no connection.
func (w *Worker) sendReset(p *packet) {
	if w.answer(p, &w.resets, &w.n.resetsLimited, func(b []byte) (int, bool) {
		return nat.BuildReset(b, p.frame, &p.Packet, w.c.TTL)
	}) {
		w.n.resets++
	}
}
