package fastpath

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// StepByOracle is Step with handleAny for every packet.
func (w *Worker) StepByOracle(now uint64) int {
	w.begin(flowtable.Time(now))
	moved := 0
	for i, link := range w.c.Links {
		n := link.Receive(w.b.desc[:w.budget.packets])
		moved += n
		w.count(i, n)
		w.budget.received(n)
		w.load()
		for _, d := range w.b.desc[:n] {
			w.n.rxBytes += uint64(d.Len)
			w.handleAny(d)
		}
		w.transmit()
	}
	moved += w.openByOracle()
	moved += w.release()
	w.transmit()
	w.reclaim()
	w.expire(moved)
	w.publish(moved)
	return moved
}

// openByOracle is openParked with handleAny for every packet.
func (w *Worker) openByOracle() (moved int) {
	w.budget.emptying = true
	for w.parked.count > 0 && w.budget.flows > 0 {
		n, link := w.parked.take(w.b.desc[:], w.budget.flows)
		for _, d := range w.b.desc[:n] {
			w.countHeld(d, -1)
		}
		w.b.origin = w.originOf(link)
		for _, d := range w.b.desc[:n] {
			bytes := w.n.rxBytes
			w.handleAny(d)
			w.n.rxBytes = bytes
		}
		w.transmit()
		moved += n
	}
	w.budget.emptying = false
	return moved
}

// Planned returns the flows of the last lookahead's certain plans, and the first port that each
// should try.
func (w *Worker) Planned() (list []PlannedFlow) {
	for i := range w.ahead.end - w.ahead.first {
		f := &w.ahead.of[i]
		if f.known && f.planned && f.plan.Verdict.Action == decide.Queued {
			n := &f.flow
			var ports []uint16
			for i := range 4 {
				port, _ := n.Port(i)
				ports = append(ports, port)
			}
			list = append(list, PlannedFlow{n.Client, n.Backend, n.Source, ports})
		}
	}
	return list
}

// PlannedFlow is a flow that is not made yet.
type PlannedFlow struct {
	Client          header.Tuple
	Backend, Source header.Addr
	Ports           []uint16
}

// MayRest reports whether the worker may sleep.
func (w *Worker) MayRest() bool { return w.mayRest() }

// Forget empties the lookahead.
func (w *Worker) Forget() { w.ahead.first, w.ahead.end = 0, 0 }

// Lookup finds a flow.
func (w *Worker) Lookup(t *header.Tuple, now uint64) (flowtable.Ref, flowtable.Side) {
	return w.flows.Lookup(w.flows.Hash(t), t, flowtable.Time(now))
}

// Outgoing returns the tuple of a client's translated packets.
func (w *Worker) Outgoing(ref flowtable.Ref) (out header.Tuple) {
	w.flows.Outgoing(ref, flowtable.ClientSide, &out)
	return out
}

// ClientOf returns the client of a flow.
func (w *Worker) ClientOf(ref flowtable.Ref) string {
	var out header.Tuple
	w.flows.Outgoing(ref, flowtable.ReplySide, &out)
	return netip.AddrPortFrom(out.Dst.Netip(), out.DstPort).String()
}

// PlainAt reports whether inspect accepts as plain a packet that begins beforeEnd bytes before the
// end of the UMEM.
func (w *Worker) PlainAt(packet []byte, beforeEnd int) bool {
	tail := w.mem[len(w.mem)-beforeEnd:]
	defer copy(tail, slices.Clone(tail))
	copy(tail, packet)
	w.b.desc[0] = Desc{Addr: uint64(len(w.mem) - beforeEnd), Len: uint32(len(packet))}
	w.inspect(0, 1)
	return w.b.search[0].End != 0
}

// Judged returns and resets the headers that handleAny parsed last: the zero Packet if all packets
// since the last call took the plain path.
func (w *Worker) Judged() header.Packet {
	p := w.b.pkt.Packet
	w.b.pkt.Packet = header.Packet{}
	return p
}
