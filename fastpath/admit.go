package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// admit plans and makes a flow for a packet that has none. It returns the flow, or 0 and the
// verdict.
//
// old is the tuple towards the backend of the flow that the new flow replaces, or zero: the
// connection keeps its source port if it keeps its backend. f has the results of the lookahead, or
// is nil.
func (w *Worker) admit(p *packet, old *header.Tuple, f *prepared) (flowtable.Ref, decide.Verdict) {
	if f != nil && f.planned && f.draw == w.draws.taken {
		return w.admitPlanned(f)
	}
	var n decide.Plan
	req := w.flowRequest(p)
	w.planner.Plan(&n, &req)
	w.budget.spend(n.Choice.Compared / comparedPerOpen)
	if n.Verdict.Action != decide.Queued {
		return 0, w.respond(p, &n)
	}
	ref, v, _ := w.createAndPin(p, &n, &req, old)
	if ref == 0 && n.Verdict.Action == decide.Queued && n.Frontend.Service.Direct {
		return 0, w.forwardUntracked(p, &n)
	}
	return ref, v
}

// respond sends the ICMP error or RST of a plan's response, if it has one, and returns the verdict.
func (w *Worker) respond(p *packet, n *decide.Plan) decide.Verdict {
	if n.Notify {
		w.sendError(p, n.Error, 0)
	}
	if n.Reset {
		w.sendReset(p)
	}
	return n.Verdict
}

// createAndPin makes the flow of a plan and then pins its client. A client that gets no flow is not
// pinned, or a flood of rejected packets would evict the pins of other clients. made reports
// whether the flow is new; if another worker was faster with the same packet, that worker sets the
// pin.
func (w *Worker) createAndPin(
	p *packet, n *decide.Plan, req *decide.Request, old *header.Tuple,
) (ref flowtable.Ref, v decide.Verdict, made bool) {
	ref, v, made = w.create(p, n, old)
	if !made || !w.planner.Settle(n, req) {
		return ref, v, made
	}
	// Another worker made a different pin first. Only a copy of this packet can have used the flow.
	if !w.flows.Abandon(ref, w.planner.Now) {
		if p.Tuple.Stateful() {
			return ref, v, made // the flow has an answer, so it stays
		}
		w.flows.DeleteFor(ref, flowtable.EndMoved)
	}
	if n.Verdict.Action != decide.Queued {
		return 0, n.Verdict, false
	}
	return w.create(p, n, old)
}

// flowRequest returns the request for a packet's flow, with the next random numbers.
func (w *Worker) flowRequest(p *packet) decide.Request {
	return requestOf(p, w.draws.take())
}

func requestOf(p *packet, random [2]uint64) decide.Request {
	return decide.Request{
		Tuple: &p.Tuple, Opens: decide.IsSYN(p.TCPFlags), RST: p.TCPFlags&header.TCPRST != 0, TTL: p.TTL,
		Random: random,
	}
}

// create makes the flow of a plan, with the old source port if possible (keepPort).
func (w *Worker) create(
	p *packet, n *decide.Plan, old *header.Tuple,
) (ref flowtable.Ref, v decide.Verdict, made bool) {
	var f flowtable.NewFlow
	w.newFlow(&f, p, n)
	if f.Direct {
		return w.insert(&f, n)
	}
	w.keepPort(&f, old, n.KeepClient || n.Route.Kind == nexthop.Kernel)
	return w.insert(&f, n)
}

// newFlow sets f to the parameters of a plan's flow.
func (w *Worker) newFlow(f *flowtable.NewFlow, p *packet, n *decide.Plan) {
	b := n.Backend
	*f = flowtable.NewFlow{
		Client: p.Tuple, Backend: b.Addr, BackendPort: b.Port, Source: n.Source,
		Service: uint32(b.Service), BackendRef: uint32(b.Ref),
	}
	f.SYN, f.HasSYN = p.syn()
	f.Tracked = w.c.Copies != nil && n.Origin == decide.SourceGroup
	if f.Proxied = n.Frontend.Service.ProxyProtocol; f.Proxied {
		f.HasSYN = p.isSYN() // it leaves without data (shift)
	}
	if n.Frontend.Service.Direct {
		f.MakeDirect(&b.Addr, !p.opensFlow())
		return
	}
	if n.KeepClient {
		// The client's port, if it is free. It is not if the same client port already reaches the
		// same backend through another frontend.
		f.SourcePort = p.Tuple.SrcPort
		f.Ports = portChoice(n.Random, services.PortRange{First: 1024, Count: 64512})
	} else {
		f.Ports = portChoice(n.Random, w.planner.Snap.SourcePorts(n.Source))
	}
}

// insert adds a plan's flow to the table. If another worker was faster with the same packet (a
// retransmission on another queue), it returns that worker's flow, and made is false.
func (w *Worker) insert(f *flowtable.NewFlow, n *decide.Plan) (ref flowtable.Ref, v decide.Verdict, made bool) {
	ref, status := w.flows.Create(w.planner.Now, f)
	w.budget.spend(max(0, w.flows.Probed()-freeProbes) / probesPerOpen)
	switch status {
	case flowtable.Created:
		w.n.flows++
		toClient := w.planner.View.Lookup(&f.Client.Src)
		w.flows.Flow(ref).BindHops(w.planner.Binding, uint16(n.Route.Hop), uint16(toClient.Hop))
		if c := w.stats.Backends.At(n.Backend.Ref.Index()); c != nil {
			c.Flows.Add(1)
		}
		return ref, queued, true
	case flowtable.Exists:
		return ref, queued, false
	case flowtable.HalfOpenLimit:
		return 0, drop(reason.HalfOpenLimit), false
	case flowtable.PortsExhausted:
		return 0, drop(reason.SNATPortsExhausted), false
	default:
		return 0, drop(reason.FlowTableFull), false
	}
}

// keepPort gives a connection that was opened again its old source address and port, so that the
// backend can compare the new SYN with the old connection in TIME_WAIT (RFC 6191). No other flow
// can have taken the port. onlyOne: the source address must be the plan's (the client's or the host
// link's), because it was not chosen from a pool. In a group, another address may be another
// gateway's.
func (w *Worker) keepPort(n *flowtable.NewFlow, old *header.Tuple, onlyOne bool) {
	if old.Dst != n.Backend || old.DstPort != n.BackendPort {
		return
	}
	if old.Src != n.Source && (onlyOne || w.c.Copies != nil || w.planner.Snap.Owned(old.Src)&services.AddrSNAT == 0) {
		return
	}
	if n.SourcePort == 0 && !w.planner.Snap.SourcePorts(old.Src).Contains(old.SrcPort) {
		return
	}
	n.Source, n.SourcePort = old.Src, old.SrcPort
}

func portChoice(random uint64, r services.PortRange) flowtable.Ports {
	start, stride := nat.ChoosePorts(random, r.First, r.Count)
	return flowtable.Ports{First: r.First, Count: r.Count, Start: start, Stride: stride}
}

// admitPlanned is admit for a packet whose speculative plan is certain.
func (w *Worker) admitPlanned(f *prepared) (flowtable.Ref, decide.Verdict) {
	w.draws.taken++
	if n := &f.plan; n.Verdict.Action != decide.Queued {
		return 0, w.respond(&f.packet, n)
	}
	ref, v, _ := w.insert(&f.flow, &f.plan)
	if ref == 0 && f.flow.Direct {
		return 0, w.forwardUntracked(&f.packet, &f.plan)
	}
	return ref, v
}
