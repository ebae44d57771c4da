package flowtable

import (
	"math/bits"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// A flow with direct return leaves the gateway untranslated, in a tunnel to a node, and its replies
// do not pass the gateway. Its record has the client's tuple and, as reply key, the reverse of that
// tuple: so no source port is taken, and Outgoing returns the packet's own tuple. No other flow has
// such a reply key: an endpoint may have its frontend's address and port (a node port of a pod in
// the host's network), and then a flow that keeps the client's address gets another source port
// than the client's.
//
// The owner names the node. A later process, whose numbers are others, finds it by NodeMark.

// NodeMark returns the number that a record of a direct flow keeps of its node.
func NodeMark(a *header.Addr) uint32 { return a.Fold() }

// MakeDirect makes n a flow with direct return by a node. midway: see NewFlow.Midway.
func (n *NewFlow) MakeDirect(node *header.Addr, midway bool) {
	n.Backend, n.BackendPort = n.Client.Dst, n.Client.DstPort
	n.Source, n.SourcePort = n.Client.Src, n.Client.SrcPort
	n.Ports, n.HasSYN, n.Proxied = Ports{}, false, false
	n.Direct, n.Midway, n.SYN = true, midway, NodeMark(node)
}

// untranslated reports whether a flow without direct return would leave as it came, if its reply
// key had these ports.
func (n *NewFlow) untranslated(replyPorts uint32) bool {
	return replyPorts == uint32(n.Client.DstPort)<<16|uint32(n.Client.SrcPort) && !n.Direct &&
		n.Source == n.Client.Src && n.Backend == n.Client.Dst
}

// Direct reports whether a flow has direct return.
func (h *Handle) Direct(r Ref) bool { return h.arena(r&refV6 != 0).direct(r.index()) }

func (a *arena) direct(i uint32) bool {
	ports := &a.flow(i).ports
	return bits.RotateLeft32(ports[ClientSide].Load(), 16) == ports[ReplySide].Load() && a.sameAddrs(i)
}

// sameAddrs reports whether neither address of a flow is translated.
func (a *arena) sameAddrs(i uint32) bool {
	client, reply := a.keyOf(i, ClientSide), a.keyOf(i, ReplySide)
	if !a.v6 {
		return client.addr[0]<<32|client.addr[0]>>32 == reply.addr[0]
	}
	return client.addr[0] == reply.addr[2] && client.addr[1] == reply.addr[3] &&
		client.addr[2] == reply.addr[0] && client.addr[3] == reply.addr[1]
}

// Mark returns the NodeMark of a direct flow's node.
func (h *Handle) Mark(r Ref) uint32 { return h.Flow(r).next.Load() }

// ChangesOneSided is Changes for a client's packet of a direct flow.
func (h *Handle) ChangesOneSided(r Ref, s Segment, now Time) bool {
	m := h.Flow(r).load()
	return m.Live() && advances(m, m.ObserveOneSided(s, now.Ticks()))
}

// advances reports whether a packet that turns a direct flow's m into n does more than Seen.
func advances(m, n conn.Meta) bool { return (n^m)&^(conn.MetaSeen|conn.MetaRefreshed) != 0 }

// ObserveOneSided is Observe for a client's packet of a direct flow.
func (h *Handle) ObserveOneSided(r Ref, s Segment, now Time) {
	f := h.Flow(r)
	for {
		m := f.load()
		n := m.ObserveOneSided(s, now.Ticks())
		switch {
		case !m.Live() || n == m,
			s.Unverified && header.Stateful(m.Proto()) && advances(m, n):
			return
		case f.swap(m, n):
			if (n^m)&conn.MetaAccounted != 0 {
				h.moved(r, m, n)
			}
			return
		}
	}
}

// ResetOneSided is called when the gateway has reset a direct connection.
func (h *Handle) ResetOneSided(r Ref, now Time) {
	f := h.Flow(r)
	for {
		m := f.load()
		n := m.ResetOneSided(now.Ticks())
		switch {
		case !m.Live() || n == m:
			return
		case f.swap(m, n):
			if (n^m)&conn.MetaAccounted != 0 {
				h.moved(r, m, n)
			}
			return
		}
	}
}
