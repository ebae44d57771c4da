package fastpath

import (
	"sync/atomic"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
)

// planner decides about packets without a flow. Each Worker and each Explainer has one, and both
// call plan, so an explanation is what a worker would do.
type planner struct {
	// Loaded once per step.
	now  flowtable.Time
	snap *services.Snapshot
	view *nexthop.View

	loads        []atomic.Int32  // connections by backend index, of the flow table
	pins         *affinity.Table // of session affinity; nil if there is none
	host4, host6 header.Addr     // our own addresses on the host link
	routes       *routeCache     // nil: none
}

// flowRequest is what a plan depends on: a packet that may make a flow.
type flowRequest struct {
	tuple *header.Tuple // client to frontend
	opens bool          // it opens a connection; UDP always does
	ttl   uint8
	// not is a backend that the flow must not get if there is another; zero for none.
	not services.BackendRef
	// random must not be guessable: the first for the choice of a backend, the second for
	// that of source address and port.
	random [2]uint64
	dryRun bool // take no turn
}

// refusal is a verdict, and whether the sender gets an ICMP error, err.
type refusal struct {
	verdict Verdict
	notify  bool
	err     nat.ErrorKind
}

// plan is a flow before it exists: all that is decided about it but its source port.
type plan struct {
	services.Decision
	refusal // Queued: the flow may be made

	pin     affinity.Pin    // of the client; zero if it has none
	pinned  bool            // the pin chose the backend
	choice  services.Choice // by the scheduler, where it did not
	backend *services.Backend
	keep    bool          // the client's address reaches the backend
	route   nexthop.Route // to the backend
	source  header.Addr   // towards the backend
	origin  Source
	random  uint64 // for the source port
}

// Source is the kind of address that a backend sees as the source.
type Source uint8

const (
	SourceNone    Source = iota // there is none of its family: no flow
	SourceClient                // the client's own
	SourceHost                  // ours on the host link, as the kernel carries the packet on
	SourceByRoute               // the one that the route prefers
	SourcePool                  // any of the configured ones
)

// String returns the name of the kind.
func (s Source) String() string {
	return [...]string{"none", "client", "host link", "route", "pool"}[s]
}

// plan decides about a packet that has no flow. It checks, in this order, whether the packet is
// for a frontend, whether it is allowed, and which backend takes it. It changes nothing but a
// frontend's turn, and with dryRun not even that.
func (s *planner) plan(n *plan, req *flowRequest) {
	n.Decision, n.random = s.snap.Decide(req.tuple), req.random[1]
	switch {
	case n.Outcome == services.Unserved:
		s.unserved(n, &req.tuple.Dst)
	case s.forged(req.tuple.Src):
		n.verdict = drop(stats.SpoofedSource)
	case req.tuple.Stateful() && !req.opens:
		n.verdict = drop(stats.NoFlow)
	case n.Outcome == services.Denied:
		n.verdict = drop(stats.SourceRangeDenied)
	case req.ttl <= 1:
		n.refuse(stats.TTLExceeded, nat.TimeExceeded)
	case n.Outcome == services.Reject:
		n.refuse(stats.NoEndpoints, nat.PortUnreachable)
	case n.Outcome == services.Silence:
		n.verdict = drop(stats.NoLocalEndpoints)
	default:
		s.choose(n, req)
		s.address(n, req)
	}
}

// refuse drops the packet and notifies its sender.
func (n *plan) refuse(r stats.DropReason, err nat.ErrorKind) {
	n.refusal = refusal{drop(r), true, err}
}

// unserved is a packet for no frontend. Addresses of the node and SNAT addresses
// are shared with the host, so the kernel gets the packet; a VIP is ours alone.
func (s *planner) unserved(n *plan, dst *header.Addr) {
	n.verdict = toKernel
	if !s.snap.VIPOnly(*dst) {
		return
	}
	switch s.snap.UnservedPort {
	case services.UnservedReject:
		n.refuse(stats.FrontendRejected, nat.PortUnreachable)
	case services.UnservedDrop:
		n.verdict = drop(stats.FrontendRejected)
	}
}

// hostSource reports whether an address is ours on the host link.
func (s *planner) hostSource(a header.Addr) bool { return a == s.host4 || a == s.host6 }

// choose finds the backend of a plan that is admitted: the one the client is pinned to, if that is
// in the set in force and not excluded, else the scheduler's choice.
func (s *planner) choose(n *plan, req *flowRequest) {
	if svc := n.Frontend.Service; svc.AffinitySeconds != 0 && s.pins != nil {
		n.pin, _ = s.pins.Get(s.now, req.tuple.Src, svc.Identity)
		if s.follow(n, n.pin, req.not) {
			return
		}
	}
	d := services.Draw{Tuple: req.tuple, Random: req.random[0], Loads: s.loads, Not: req.not, DryRun: req.dryRun}
	n.choice = s.snap.Choose(n.Frontend, n.Rule.Set, &d)
	n.backend = s.snap.Backend(n.choice.Backend)
}

// follow makes a pin's backend that of the plan, if it is in the set and not the one that
// the flow must not get.
func (s *planner) follow(n *plan, pin affinity.Pin, not services.BackendRef) bool {
	if pin.Port == 0 {
		return false // no pin
	}
	ref := n.Rule.Set.Find(s.snap, pin.Addr, pin.Port)
	if ref == 0 || ref == not {
		return false
	}
	n.pinned, n.backend = true, s.snap.Backend(ref)
	return true
}

// address finds how the backend is reached, and from which address.
func (s *planner) address(n *plan, req *flowRequest) {
	if n.backend == nil { // not a set of this snapshot
		n.refuse(stats.NoEndpoints, nat.PortUnreachable)
		return
	}
	n.route = s.routes.to(s.view, n.backend)
	// A backend that reaches itself would see its own address.
	n.keep = n.Rule.KeepClient && req.tuple.Src != n.backend.Addr
	if n.keep {
		n.source, n.origin = req.tuple.Src, SourceClient
	} else {
		n.source, n.origin = s.source(req.random[1]>>32, &n.route, req.tuple.V6)
	}
	n.verdict = queued
	if n.origin == SourceNone {
		n.verdict = drop(stats.NoRoute)
	}
}

// source chooses our address towards a backend: the host link's own where the
// kernel carries the packet on (its replies then come back by the host link), the
// route's or one of the configured addresses elsewhere.
func (s *planner) source(random uint64, r *nexthop.Route, v6 bool) (header.Addr, Source) {
	pool, byRoute, host := s.snap.SNAT4, s.snap.SNATByRoute4, s.host4
	if v6 {
		pool, byRoute, host = s.snap.SNAT6, s.snap.SNATByRoute6, s.host6
	}
	switch {
	case r.Kind == nexthop.Kernel && host == header.Addr{}:
		return host, SourceNone
	case r.Kind == nexthop.Kernel:
		return host, SourceHost
	// A source that the snapshot does not know yet would get no replies.
	case byRoute && s.snap.Owned(r.Source)&services.AddrSNAT != 0:
		return r.Source, SourceByRoute
	case len(pool) == 0:
		return header.Addr{}, SourceNone
	}
	return pool[random%uint64(len(pool))], SourcePool
}
