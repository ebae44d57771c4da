package simulate

import (
	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
)

// flowKey is a flow: all packets of a client from one socket to one frontend in the capture. A
// flow of the table ends earlier, if the client opens a connection again.
type flowKey struct {
	client, frontend flowtable.Socket
	proto            uint8
}

func keyOf(t *header.Tuple) flowKey {
	return flowKey{flowtable.SocketOf(&t.Src, t.SrcPort), flowtable.SocketOf(&t.Dst, t.DstPort), t.Proto}
}

// tuple returns the client's tuple.
func (k *flowKey) tuple() header.Tuple {
	return header.Tuple{Src: k.client.Addr(), Dst: k.frontend.Addr(), SrcPort: k.client.Port,
		DstPort: k.frontend.Port, Proto: k.proto, V6: !k.frontend.Is4()}
}

// flow has the results of a flow by gateway.
type flow struct {
	number uint32 // of the flow in the capture, from 1
	opened bool   // false: the connection was open when the capture began
	of     [2]result
}

// result is a gateway's result for a flow: its first backend, and the reason of its first drop.
type result struct {
	backend int32 // number in accounts.backends, plus 1; 0: no packet was forwarded
	reason  cause // of the first drop
	kernel  bool  // a packet went to the kernel
}

// cause is a reason.Drop, or denied.
type cause uint8

// denied: the kernel program drops the packets of a client that the configuration denies.
const denied = cause(reason.Count)

// String returns the name of the counter.
func (c cause) String() string {
	if c == denied {
		return "denied_dropped"
	}
	return reason.Drop(c).String()
}

// verdict returns the verdict about a flow; "" if the gateway got no packet of it.
func (r *result) verdict() string {
	switch {
	case r.backend != 0:
		return status.VerdictForward
	case r.reason != 0:
		return status.VerdictDrop
	case r.kernel:
		return status.VerdictPass
	}
	return ""
}

// accounts has the results of one gateway that are no flow's.
type accounts struct {
	packets    status.SimulateCounts
	drops      [denied + 1]uint64
	tooBig     uint64
	fragmented uint64

	backends []backend
	numbers  map[backendKey]int32 // in backends
	sets     map[setKey]uint64    // forwarded flows, by the set that their backend was chosen from
}

type backendKey struct {
	service services.ServiceID
	socket  flowtable.Socket
}

type setKey struct {
	service services.ServiceID
	set     *services.EndpointSet
}

// backend has the flows of a backend, or of a node for direct return.
type backend struct {
	backendKey
	flows uint64
}

// number returns the number of a backend in backends.
func (a *accounts) number(k backendKey) int32 {
	n, ok := a.numbers[k]
	if !ok {
		n = int32(len(a.backends))
		a.numbers[k] = n
		a.backends = append(a.backends, backend{backendKey: k})
	}
	return n
}

// flowOf returns the flow of a packet, and makes it if there is room.
func (s *simulation) flowOf(k flowKey) *flow {
	f := s.flows[k]
	if f == nil && len(s.flows) < s.maxFlows {
		f = &flow{number: uint32(len(s.flows) + 1)}
		s.flows[k] = f
	}
	return f
}

// note adds a packet's record to the results of gateway n.
func (s *simulation) note(n int, r *capture.Record) {
	if r.Flow.Reply {
		return
	}
	c := cause(0)
	if r.Verdict == capture.Drop {
		c = cause(r.Reason)
	}
	s.count(n, c, r.Verdict)
	if c == cause(reason.PacketTooBig) {
		s.of[n].tooBig++
	}
	if r.Verdict == capture.Forwarded && s.packet.ipBytes() > s.mtu {
		s.of[n].fragmented++
	}
	k := flowKey{r.Flow.Client, r.Flow.Frontend, r.Flow.Proto}
	if f := s.flows[k]; f != nil && f.opened {
		s.result(n, k, f, r)
	}
}

// count counts a packet by its verdict.
func (s *simulation) count(n int, c cause, v capture.Verdict) {
	p := &s.of[n].packets
	switch {
	case c != 0:
		p.Dropped++
		s.of[n].drops[c]++
	case v == capture.ToKernel:
		p.ToKernel++
	default:
		p.Forwarded++
	}
}

// result adds a packet's verdict to a flow.
func (s *simulation) result(n int, k flowKey, f *flow, r *capture.Record) {
	x := &f.of[n]
	switch {
	case r.Verdict == capture.Drop:
		if x.reason == 0 {
			x.reason = cause(r.Reason)
		}
	case r.Verdict == capture.ToKernel:
		x.kernel = true
	case x.backend == 0:
		x.backend = s.assign(n, k, r)
	}
}

// assign counts a flow for its backend, and for the set that the backend was chosen from. It
// returns the backend's number plus 1.
func (s *simulation) assign(n int, k flowKey, r *capture.Record) int32 {
	a, id := &s.of[n], services.ServiceID(r.Flow.Service)
	t := k.tuple()
	d := s.gateways[n].Snapshot.Decide(&t)
	if d.Rule != nil {
		a.sets[setKey{id, d.Rule.Set}]++
	}
	at := a.number(backendKey{id, s.gateways[n].end(&r.Flow, &t)})
	a.backends[at].flows++
	return at + 1
}

// end returns the backend of a flow of a client's tuple, or the node that gets it by direct return:
// the flow does not name the node.
func (g *gateway) end(f *capture.Flow, t *header.Tuple) flowtable.Socket {
	if f.Known && f.Backend != f.Frontend {
		return f.Backend
	}
	front := g.Snapshot.Frontend(t)
	if front == nil {
		return f.Backend
	}
	b := g.Snapshot.Backend(g.Snapshot.Node(front, t))
	if b == nil {
		return f.Backend
	}
	return socketOf(b)
}

func socketOf(b *services.Backend) flowtable.Socket { return flowtable.SocketOf(&b.Addr, b.Port) }
