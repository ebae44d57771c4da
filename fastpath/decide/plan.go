package decide

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

// Planner decides about packets. Each worker and each Explainer has one, and both call Plan, so an
// explanation is what a worker would do. One goroutine at a time may use it.
type Planner struct {
	// Loaded once per step.
	Now  flowtable.Time
	Snap *services.Snapshot
	View *nexthop.View
	// Binding is the number that flows are bound with in this step (BindingOf).
	Binding uint32

	Flows        *flowtable.Handle
	Loads        []atomic.Int32  // connections by backend index, of the flow table
	Pins         *affinity.Table // of session affinity; nil if there is none
	Host4, Host6 header.Addr     // our own addresses on the host link
	Routes       *RouteCache     // nil: none
	Rebound      int             // flows that Bind had to bind, since somebody set it
	Searches     int             // how often gone may still search for an endpoint, until somebody sets it
}

// Request is what a plan depends on: a packet that may make a flow.
type Request struct {
	Tuple *header.Tuple // client to frontend
	Opens bool          // it opens a connection; UDP always does
	RST   bool          // it is an RST
	TTL   uint8
	// Not is a backend that the flow must not get if there is another; zero for none.
	Not services.BackendRef
	// Random must not be guessable: the first for the choice of a backend, the second for
	// that of source address and port.
	Random [2]uint64
	DryRun bool // take no turn
	// Speculative: the plan is made again if it is not certain (Certain). So it need not compare
	// the connections of many backends; then it has no backend.
	Speculative bool
}

// Refusal is a verdict, and whether the sender gets an ICMP error, or an RST.
type Refusal struct {
	Verdict Verdict
	Notify  bool
	Error   nat.ErrorKind // where Notify
	Reset   bool
}

// Plan is a flow before it exists: all that is decided about it but its source port.
type Plan struct {
	services.Decision
	Refusal // Queued: the flow may be made

	Pin        affinity.Pin    // of the client; zero if it has none
	Tentative  bool            // the pin is
	Pinned     bool            // the pin chose the backend
	Choice     services.Choice // by the scheduler, if there is no such pin
	Backend    *services.Backend
	KeepClient bool          // the client's address reaches the backend
	Route      nexthop.Route // to the backend
	Source     header.Addr   // towards the backend
	Origin     Source        // the kind of that address
	Random     uint64        // for the source port
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

// Plan decides about a packet that has no flow. It checks, in this order, whether the packet is
// for a frontend, whether it is allowed, and which backend takes it. It changes nothing but a
// frontend's turn, and with DryRun not even that.
func (s *Planner) Plan(n *Plan, req *Request) {
	n.Decision, n.Random = s.Snap.Decide(req.Tuple), req.Random[1]
	switch {
	case n.Outcome == services.Unserved:
		s.unserved(n, req.Tuple)
	case s.Forged(req.Tuple.Src), s.Snap.FromFrontend(req.Tuple, n.Frontend):
		n.Verdict = dropped(stats.SpoofedSource)
	case req.Tuple.Stateful() && !req.Opens:
		n.Verdict, n.Reset = dropped(stats.NoFlow), s.resets(n, req)
	case n.Outcome == services.Denied:
		n.Verdict = dropped(stats.SourceRangeDenied)
	case req.TTL <= 1:
		n.refuse(stats.TTLExceeded, nat.TimeExceeded)
	case n.Outcome == services.Reject:
		n.refuse(stats.NoEndpoints, nat.PortUnreachable)
	case n.Outcome == services.Silence:
		n.Verdict = dropped(stats.NoLocalEndpoints)
	default:
		if r := s.limited(n, req); r != stats.None {
			n.Verdict = dropped(r)
			return
		}
		s.choose(n, req)
		s.address(n, req)
	}
}

// refuse drops the packet and notifies its sender.
func (n *Plan) refuse(r stats.DropReason, err nat.ErrorKind) {
	n.Refusal = Refusal{Verdict: dropped(r), Notify: true, Error: err}
}

// resets reports whether a packet in the middle of an unknown connection gets an RST
// (docs/adr/0015). Whoever the Service drops in silence learns nothing. A ClusterIP is every
// node's, and the connection may be known to another one. SCTP has no RST, and what has its place,
// ABORT, must not be sent without a look at every chunk of the packet (RFC 9260 section 8.4).
func (s *Planner) resets(n *Plan, req *Request) bool {
	return s.Snap.ResetUnknown && req.Tuple.Proto == header.ProtoTCP && !req.RST &&
		n.Frontend.Kind != services.ClusterIP && n.Outcome != services.Denied && n.Outcome != services.Silence
}

// unserved decides about a packet for no frontend. The kernel gets it if the destination is an
// address of the node.
func (s *Planner) unserved(n *Plan, t *header.Tuple) {
	switch {
	case !s.Refuses(t.Dst):
		n.Verdict = toKernel
	case s.Forged(t.Src):
		n.Verdict = dropped(stats.SpoofedSource)
	case s.Snap.Owned(t.Dst)&services.AddrVIP == 0: // a late answer of a backend
		n.Verdict = dropped(stats.NoFlow)
	case s.Snap.UnservedPort == services.UnservedReject:
		n.refuse(stats.FrontendRejected, nat.PortUnreachable)
	default:
		n.Verdict = dropped(stats.FrontendRejected)
	}
}

// Refuses reports whether a packet from outside to an address is dropped where it is for no
// frontend and no flow. The kernel must not get it, as it would send it back where it came from.
func (s *Planner) Refuses(dst header.Addr) bool {
	return s.Snap.UnservedPort != services.UnservedPass && s.Snap.Routed(dst)
}

// HostSource reports whether an address is ours on the host link.
func (s *Planner) HostSource(a header.Addr) bool { return a == s.Host4 || a == s.Host6 }

// maxSpeculative bounds the backends that a speculative plan compares. To compare more costs more
// than the cache miss that it saves.
const maxSpeculative = 16

// choose finds the backend of a plan that is admitted: the one the client is pinned to, if that is
// in the set in force and not excluded, else the scheduler's choice.
func (s *Planner) choose(n *Plan, req *Request) {
	svc := n.Frontend.Service
	if svc.AffinitySeconds != 0 && s.Pins != nil {
		n.Pin, n.Tentative, _ = s.Pins.Get(s.Now, req.Tuple.Src, svc.Identity)
		if s.follow(n, n.Pin, req.Not) {
			return
		}
	}
	if req.Speculative && svc.Scheduler.ByLoad() && len(n.Rule.Set.Backends) > maxSpeculative {
		return
	}
	d := services.Draw{Tuple: req.Tuple, Random: req.Random[0], Loads: s.Loads, Not: req.Not, DryRun: req.DryRun}
	n.Choice = s.Snap.Choose(n.Frontend, n.Rule.Set, &d)
	n.Backend = s.Snap.Backend(n.Choice.Backend)
}

// follow sets the plan's backend to the pin's, if that is in the set and not excluded.
func (s *Planner) follow(n *Plan, pin affinity.Pin, not services.BackendRef) bool {
	if pin.Port == 0 {
		return false // no pin
	}
	ref := n.Rule.Set.Find(s.Snap, pin.Addr, pin.Port)
	if ref == 0 || ref == not {
		return false
	}
	n.Pinned, n.Backend = true, s.Snap.Backend(ref)
	return true
}

// address sets the route to the backend and the source address.
func (s *Planner) address(n *Plan, req *Request) {
	if n.Backend == nil { // not a set of this snapshot
		n.refuse(stats.NoEndpoints, nat.PortUnreachable)
		return
	}
	n.Route = s.Routes.to(s.View, n.Backend)
	// A backend that reaches itself would see its own address.
	n.KeepClient = n.Rule.KeepClient && req.Tuple.Src != n.Backend.Addr
	if n.KeepClient {
		n.Source, n.Origin = req.Tuple.Src, SourceClient
	} else {
		n.Source, n.Origin = s.source(req.Random[1]>>32, &n.Route, req.Tuple.V6)
	}
	n.Verdict = queued
	if n.Origin == SourceNone {
		n.Verdict = dropped(stats.NoRoute)
	}
}

// source chooses our address towards a backend: the host link's own where the
// kernel carries the packet on (its replies then come back by the host link), the
// route's or one of the configured addresses elsewhere.
func (s *Planner) source(random uint64, r *nexthop.Route, v6 bool) (header.Addr, Source) {
	pool, byRoute, host := s.Snap.SNAT4, s.Snap.SNATByRoute4, s.Host4
	if v6 {
		pool, byRoute, host = s.Snap.SNAT6, s.Snap.SNATByRoute6, s.Host6
	}
	switch {
	case r.Kind == nexthop.Kernel && host == header.Addr{}:
		return host, SourceNone
	case r.Kind == nexthop.Kernel:
		return host, SourceHost
	// A source that the snapshot does not know yet would get no replies.
	case byRoute && s.Snap.Owned(r.Source)&services.AddrSNAT != 0:
		return r.Source, SourceByRoute
	case len(pool) == 0:
		return header.Addr{}, SourceNone
	}
	return pool[random%uint64(len(pool))], SourcePool
}

// Forged reports whether a packet claims to be from this node and came from outside: it gets no
// flow. The kernel must not get it from us either: on the host link it accepts local sources, so it
// would accept the packet. An address that is only a VIP is a possible source: another gateway may
// share it, and an external IP may be another node's address, which opens connections from ports
// that are no frontend's (services.Snapshot.FromFrontend).
func (s *Planner) Forged(src header.Addr) bool {
	const own = services.AddrLocal | services.AddrNode | services.AddrSNAT
	return s.Snap.Owned(src)&own != 0 || s.HostSource(src)
}

// Certain reports whether the plan is a function of packet, snapshot, view and random number alone.
func (n *Plan) Certain() bool {
	if n.Frontend == nil {
		return true
	}
	svc := n.Frontend.Service
	return svc.AffinitySeconds == 0 && !svc.Limits.Any() && !svc.Scheduler.InTurn() && !svc.Scheduler.ByLoad()
}
