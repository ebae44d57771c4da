package decide

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// ExplainerConfig is the configuration of an Explainer: parts that the workers use as well.
type ExplainerConfig struct {
	Services                 *services.Handle
	Hops                     *nexthop.Table
	Flows                    *flowtable.Table // nil: no flow is known
	Affinity                 *affinity.Table  // nil: no client is pinned
	HostSource4, HostSource6 header.Addr
	// MayReset reports whether unknown segments get an RST at a time, in nanoseconds of
	// CLOCK_BOOTTIME; nil: the gateway is in no group.
	MayReset func(now uint64) bool
}

// Explainer describes how the workers would handle a packet. It makes the same plan as they do, and
// changes no flow, no pin and no turn. Any number of goroutines may use it.
type Explainer struct {
	c  ExplainerConfig
	mu sync.Mutex // guards flows, which only one goroutine may use at a time
	// flows is offline between two calls; nil: there is no table.
	flows *flowtable.Handle
}

// NewExplainer registers a participant of the flow table. Close unregisters it.
func NewExplainer(c ExplainerConfig) (*Explainer, error) {
	e := &Explainer{c: c}
	if c.Flows == nil {
		return e, nil
	}
	var err error
	if e.flows, err = c.Flows.Register(); err != nil {
		return nil, fmt.Errorf("decide: explaining packets: %w", err)
	}
	return e, nil
}

// Close unregisters the participant. The Explainer must not be used afterwards.
func (e *Explainer) Close() {
	if e.flows != nil {
		e.flows.Close()
	}
}

// Explanation is the decision about a packet from outside, and its reasons. It assumes that the
// packet is whole, well-formed and no larger than the MTU of its hop. Fields that the decision did
// not need are zero.
type Explanation struct {
	Generation uint64 // of the snapshot
	Tuple      header.Tuple
	Opens      bool

	// The verdict. Notify: the sender gets the ICMP error Error (if the rate allows).
	Verdict Verdict
	Notify  bool
	Error   nat.ErrorKind
	// Reset: the sender gets an RST (if the rate allows). Silent: it gets none, because this
	// gateway does not have all flows of its group.
	Reset, Silent bool
	// Grouped: the gateway is in a group.
	Grouped bool

	// Known: the packet has a flow, Flow, and arrives from Side. Class is its relation to the flow.
	// If the flow is superseded, all fields below describe the flow that would replace it.
	Known bool
	Flow  flowtable.Info
	Side  flowtable.Side
	Class Class
	// Moved: the flow's frontend now belongs to another service port, which does not have its
	// backend.
	Moved bool
	// Retry: if the packet is the second repetition of an unanswered SYN, it goes to another
	// backend (services.Snapshot.RetryOther, or the flow's backend is gone).
	Retry bool
	// MayNotBegin: Opens, but no connection may begin on the flow (Planner.MayBegin). Its backend's
	// SYN-ACKs are dropped, and the flow of the second repetition gets the verdict Instead.
	MayNotBegin bool
	Instead     Verdict

	// Decision is about a new flow: frontend, source ranges, kind of client, rule.
	services.Decision
	PodRange netip.Prefix // the prefix of Snapshot.Pods that has the client, if one does

	// Pin is the backend that the client is pinned to, if it is pinned. Tentative: no flow of the
	// client has been established since. PinInSet: that backend is in the set of the client's rule,
	// and so the pin chose it, not the Scheduler.
	Pin       affinity.Pin
	Tentative bool
	PinInSet  bool
	Scheduler services.Scheduler
	Slot      int    // of the set's Table; -1 where connections were compared
	Turn      uint32 // the flow's turn, for schedulers that take turns
	Loads     []Load // the compared backends, for schedulers that compare connections

	// SourceUse and ServiceUse are the used parts of the limits of the frontend's Service at Now.
	// They are valid if Counted.
	SourceUse, ServiceUse flowtable.Use
	Counted               bool
	Now                   flowtable.Time

	// Backend is the chosen backend, or the known flow's; nil if there is none, or it is gone.
	Backend *services.Backend
	// Out is the tuple of the translated packet. The source port of a new flow is drawn when the
	// flow is made, and is 0 here; if the client's address is kept, it is the client's port, which
	// the flow gets if it is free.
	Out    header.Tuple
	Source Source // the kind of the source address of a new flow
	// Route is the route to the destination of Out. Hop is the neighbour, which may not be resolved
	// yet (Ready); it is nil if it must be requested first.
	Route nexthop.Route
	Hop   *nexthop.Hop
}

// Load has the values of a backend that a connection-counting scheduler compares.
type Load struct {
	Backend     *services.Backend
	Connections int32
	Weight      uint16
}

// Explain returns the decision of a worker about a packet of a TCP, UDP or SCTP tuple. opens: the
// packet opens a connection or association (SYN, INIT); UDP has no such packet. now is
// CLOCK_BOOTTIME.
func (e *Explainer) Explain(t header.Tuple, opens bool, now flowtable.Time) Explanation {
	s := Planner{
		Now: now, Snap: e.c.Services.Load(), View: e.c.Hops.View(), Flows: e.flows,
		Pins: e.c.Affinity, Host4: e.c.HostSource4, Host6: e.c.HostSource6,
	}
	if e.c.Flows != nil {
		s.Loads = e.c.Flows.Loads()
	}
	s.Silent = e.c.MayReset != nil && !e.c.MayReset(uint64(now))
	x := Explanation{Generation: s.Snap.Generation, Tuple: t, Opens: opens}
	none := header.Addr{}
	x.Grouped = e.c.MayReset != nil || s.Snap.Group4 != none || s.Snap.Group6 != none
	if e.known(&s, &x) {
		e.leaves(&s, &x)
	} else {
		e.plan(&s, &x)
	}
	if x.Verdict == toKernel && s.Forged(t.Src) {
		x.Verdict = dropped(reason.SpoofedSource)
	}
	return x
}

// plan explains a packet without a flow.
func (e *Explainer) plan(s *Planner, x *Explanation) {
	var n Plan
	random := [2]uint64{rand.Uint64(), rand.Uint64()}
	req := Request{Tuple: &x.Tuple, Opens: x.Opens, TTL: 255, Random: random, DryRun: true}
	s.Plan(&n, &req)
	x.planned(s, &n)
	if s.Silent && n.Verdict == dropped(reason.NoFlow) && n.Frontend != nil {
		s.Silent = false
		x.Silent = s.resets(&n, &req)
	}
	e.leaves(s, x)
}

// known looks up the packet's flow, and reports whether that decides the verdict.
func (e *Explainer) known(s *Planner, x *Explanation) bool {
	if e.flows == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flows.Enter(s.Now)
	defer e.flows.Leave()
	hash := e.flows.Hash(&x.Tuple)
	ref, side := e.flows.Lookup(hash, &x.Tuple, s.Now)
	if ref == 0 || !e.flows.Inspect(ref, s.Now, &x.Flow) {
		if x.Tuple.Stateful() && !x.Opens && s.Forged(x.Tuple.Dst) && e.flows.Abandoned(hash, s.Now) {
			x.Verdict = dropped(reason.LateAnswer)
			return true
		}
		return false
	}
	x.Known, x.Side = true, side
	e.flows.Outgoing(ref, side, &x.Out)
	now, owned := owner{x.Flow.Service, x.Flow.Backend}, true
	toBackend := x.Flow.Reply.Reverse()
	switch {
	case x.Flow.Direct && x.Flow.Binding != 0 && !x.Tuple.Stateful():
		if owned = !s.moved(&x.Flow.Client, now.service); !owned {
			now.backend = 0
		}
	case x.Flow.Direct && (x.Flow.Binding == 0 || s.Snap.Backend(services.BackendRef(now.backend)) == nil):
		now.service, now.backend = AdoptDirect(s.Snap, &x.Flow.Client, e.flows.Mark(ref))
	case x.Flow.Direct:
	case x.Flow.Binding == 0, now.backend == 0, x.Tuple.Stateful() &&
		s.Snap.Backend(services.BackendRef(now.backend)) == nil:
		now = s.adopt(&x.Flow.Client, &toBackend, x.Flow.Proxied) // it may have come back
	case x.Tuple.Proto == header.ProtoUDP:
		now, owned = s.datagramOwner(&x.Flow.Client, &toBackend, x.Flow.Proxied, now)
	}
	backend := services.BackendRef(now.backend)
	x.Backend, x.Moved = s.Snap.Backend(backend), !owned
	retry := x.Backend == nil || s.Snap.RetryOther && x.Flow.State == flowtable.SynSeen
	switch {
	case x.Flow.Direct && side == flowtable.ReplySide:
		x.Verdict = s.withoutFlow(&x.Tuple)
		return true
	case x.Flow.Direct:
		syn := x.Opens && x.Tuple.Stateful()
		serves := s.nodeServes(x.Backend, &x.Tuple, syn, now.service)
		switch {
		case s.stranded(x.Backend, &x.Tuple, syn):
			x.Class, x.Reset = BackendGone, x.Tuple.Proto == header.ProtoTCP
		case overDirect(x.Backend, serves, &x.Tuple, syn, e.flows.Ended(ref)):
			x.Class = Superseded
		}
		retry = !serves
	case x.Tuple.Proto == header.ProtoUDP:
		x.Class = s.datagram(ref, backend, owned, side)
	case side == flowtable.ClientSide && x.Opens && s.reopens(ref):
		x.Class = Superseded
	}
	again := x.Tuple.Stateful() && x.Opens && side == flowtable.ClientSide && x.Class == InFlow
	if again && !x.Flow.Direct {
		if x.MayNotBegin = !s.MayBegin(ref); x.MayNotBegin {
			var n Plan
			s.Plan(&n, &Request{Tuple: &x.Tuple, Opens: true, TTL: 255, DryRun: true, Not: backend,
				Random: [2]uint64{rand.Uint64(), rand.Uint64()}})
			x.Instead = n.Verdict
		}
	}
	x.Retry = again && (retry || x.MayNotBegin)
	x.Verdict = queued
	if x.Class == BackendGone && (x.Tuple.Stateful() || x.Flow.Idle >= replyGrace) {
		x.Verdict = dropped(reason.BackendGone)
	}
	if again {
		if r := s.LimitedAgain(ref, &x.Tuple); r != reason.None {
			x.Verdict = dropped(r)
		}
	}
	return x.Class != Superseded
}

// withoutFlow is the verdict about a packet from outside that belongs to no flow and opens none.
func (s *Planner) withoutFlow(t *header.Tuple) Verdict {
	switch {
	case !s.Rejects(t.Dst):
		return toKernel
	case s.Forged(t.Src):
		return dropped(reason.SpoofedSource)
	}
	return dropped(reason.Protocol)
}

// Direct reports whether the packet leaves untranslated in a tunnel to Backend, a node.
func (x *Explanation) Direct() bool {
	if x.Known && x.Class != Superseded {
		return x.Flow.Direct
	}
	return x.Frontend != nil && x.Frontend.Service.Direct
}

// Towards returns the address that the packet is sent to: the node at the end of a tunnel, or the
// destination of Out.
func (x *Explanation) Towards() header.Addr {
	if x.Direct() && x.Backend != nil {
		return x.Backend.Addr
	}
	return x.Out.Dst
}

// planned copies a plan into the explanation.
func (x *Explanation) planned(s *Planner, n *Plan) {
	x.Verdict, x.Notify, x.Error = n.Verdict, n.Notify, n.Error
	x.Reset = n.Reset
	x.Decision, x.Pin, x.Tentative, x.PinInSet, x.Backend = n.Decision, n.Pin, n.Tentative, n.Pinned, n.Backend
	x.Slot, x.Source, x.Out = n.Choice.Slot, n.Origin, header.Tuple{}
	if x.Pod {
		x.PodRange, _ = s.Snap.Pods.Match(x.Tuple.Src)
	}
	x.limits(s)
	if n.Backend == nil {
		return
	}
	x.Out = header.Tuple{
		Src: n.Source, Dst: n.Backend.Addr, DstPort: n.Backend.Port, Proto: x.Tuple.Proto, V6: x.Tuple.V6,
	}
	if n.KeepClient {
		x.Out.SrcPort = x.Tuple.SrcPort
	}
	svc := n.Frontend.Service
	if svc.Direct {
		x.Out = x.Tuple
	}
	x.Scheduler = svc.Scheduler
	if turn := n.Frontend.Turn; turn != nil {
		x.Turn = turn.Load()
	}
	if !n.Pinned && svc.Scheduler.ByLoad() {
		x.Loads = s.compared(n.Rule.Set)
	}
}

// limits sets the used parts of the limits of the frontend's Service.
func (x *Explanation) limits(s *Planner) {
	if x.Frontend == nil || s.Flows == nil {
		return
	}
	id, t := uint32(x.Frontend.Service.ID), s.Flows.Table()
	x.SourceUse, x.ServiceUse = t.SourceUse(&x.Tuple.Src, x.Tuple.V6, id), t.ServiceUse(id)
	x.Counted, x.Now = true, s.Now
}

// compared returns the loads that a scheduler by connections compares.
func (s *Planner) compared(set *services.EndpointSet) (all []Load) {
	for i, r := range set.Backends {
		l := Load{Backend: s.Snap.Backend(r), Weight: 1}
		if set.Weights != nil {
			l.Weight = set.Weights[i]
		}
		if n := r.Index(); n < uint32(len(s.Loads)) {
			l.Connections = s.Loads[n].Load()
		}
		all = append(all, l)
	}
	return all
}

// leaves sets the route and the hop of a packet that is forwarded.
func (e *Explainer) leaves(s *Planner, x *Explanation) {
	if x.Verdict != queued {
		return
	}
	to := x.Towards()
	reached := true
	if x.Direct() {
		x.Route, reached = s.TunnelRoute(&to)
	} else {
		x.Route = s.View.Lookup(&to)
	}
	x.Hop = e.c.Hops.Hop(x.Route.Hop)
	if !reached {
		x.Verdict = dropped(reason.NoRoute)
	} else if x.Hop != nil && x.Hop.Kind == nexthop.Unreachable {
		x.Verdict, x.Notify, x.Error = Unreachable.Verdict, Unreachable.Notify, Unreachable.Error
	}
}
