package fastpath

import (
	"encoding/binary"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// encapsulate writes the Ethernet header for a hop in front of the IP header, in place of the
// received one. VLAN tags extend into the frame's headroom. Trailing padding is cut off.
func (w *Worker) encapsulate(o outgoing, hop *nexthop.Hop) Desc {
	hop.Use()
	tags := int(hop.VLANs)
	l2 := uint64(header.EthernetBytes + tags*header.VLANBytes)
	start := o.desc.Addr + uint64(o.l3) - l2
	b := w.mem[start : start+l2 : start+l2]
	copy(b[0:6], hop.DstMAC[:])
	copy(b[6:12], hop.SrcMAC[:])
	at := 12
	for i := range tags {
		binary.BigEndian.PutUint16(b[at:], hop.VLAN[i].TPID)
		binary.BigEndian.PutUint16(b[at+2:], hop.VLAN[i].TCI)
		at += header.VLANBytes
	}
	etherType := uint16(header.EtherTypeIPv4)
	if o.v6 {
		etherType = header.EtherTypeIPv6
	}
	binary.BigEndian.PutUint16(b[at:], etherType)
	bytes := uint32(l2) + uint32(o.end-o.l3)
	if o.desc.Len == 0 {
		return w.chains.move(w.pool, o.desc, start, bytes)
	}
	return Desc{Addr: start, Len: bytes}
}

// queue appends to a link's egress queue. It transmits a full queue first.
func (w *Worker) queue(link int, d Desc) {
	if d.Len == 0 && !w.c.Links[link].Long() {
		// The hop's MTU allows it, but the link has not been reopened for long packets yet.
		w.dropped(d, reason.PacketTooBig)
		return
	}
	q := &w.egress.queues[link]
	if !q.put(d) {
		w.transmitOn(link) // empties the queue
		q.put(d)
	}
	if d.Len == 0 {
		q.long += uint64(w.chains.Bytes(d))
	}
}

// transmit gives every egress queue to its link.
func (w *Worker) transmit() {
	for i := range w.egress.queues {
		if w.egress.queues[i].n > 0 {
			w.transmitOn(i)
		}
	}
}

// transmitOn gives one queue to its link. If the ring is full, it drains the ring once. Packets for
// which there is still no room are dropped, so that a slow link never stops the worker.
func (w *Worker) transmitOn(i int) {
	q, link := &w.egress.queues[i], w.c.Links[i]
	batch, long := q.desc[:q.n], q.long
	q.n, q.long = 0, 0
	if !link.Up() {
		w.dropAll(batch, reason.LinkDown)
		return
	}
	if w.tap != nil {
		w.tapSend(i, batch)
	}
	taken := link.Transmit(batch)
	if taken < len(batch) {
		link.Flush()
		link.Complete(w.pool)
		taken += link.Transmit(batch[taken:])
	}
	if long != 0 {
		long -= w.longBytes(batch[taken:])
	}
	if w.tap != nil {
		w.tapSent(i, batch, taken)
	}
	w.countSent(i, batch[:taken], long)
	w.dropAll(batch[taken:], reason.TxRingFull)
}

// countSent counts packets that a link has taken. long is the total length, in bytes, of chains.
func (w *Worker) countSent(link int, batch []Desc, long uint64) {
	if link == w.c.Host {
		w.n.returned += uint64(len(batch))
		return
	}
	w.n.tx += uint64(len(batch))
	bytes := long
	for i := range batch {
		bytes += uint64(batch[i].Len)
	}
	w.n.txBytes += bytes
}

// longBytes returns the total length, in bytes, of a batch's packets in several frames.
func (w *Worker) longBytes(batch []Desc) (n uint64) {
	for _, d := range batch {
		if d.Len == 0 {
			n += uint64(w.chains.Bytes(d))
		}
	}
	return n
}

func (w *Worker) dropAll(batch []Desc, r reason.Drop) {
	for _, d := range batch {
		w.dropped(d, r)
	}
}
