package decide

import (
	"sync/atomic"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// Planner decides about packets. Each worker and each Explainer has one, and both call Plan, so an
// explanation is the decision that a worker would make. One goroutine at a time may use it.
type Planner struct {
	// Loaded once per step.
	Now  flowtable.Time
	Snap *services.Snapshot
	View *nexthop.View
	// Binding is the binding number of this step (BindingOf).
	Binding uint32

	Flows        *flowtable.Handle
	Loads        []atomic.Int32  // connections by backend index, of the flow table
	Pins         *affinity.Table // pins of session affinity; nil if there is none
	Host4, Host6 header.Addr     // our own addresses on the host link
	Routes       *RouteCache     // nil: none
	Silent       bool            // segments of unknown connections get no RST
	Rebound      int             // flows that Bind has bound since the worker last set it to 0
	Searches     int             // searches for an endpoint that gone may still make; the worker sets it
}

// Request describes a packet that may make a flow.
type Request struct {
	Tuple *header.Tuple // client to frontend
	Opens bool          // it opens a connection; UDP always does
	RST   bool          // it is an RST
	TTL   uint8
	// Not is a backend that the flow does not get if there is another; zero for none.
	Not services.BackendRef
	// Random has two numbers that must not be guessable: the first selects a backend, the second a
	// source address and port.
	Random [2]uint64
	DryRun bool // take no turn
	// Speculative: the caller makes the plan again if it is not Certain. So Plan does not compare
	// the connections of many backends; it then returns a plan without a backend.
	Speculative bool
}

// Response is a verdict about a packet, and the message to its sender: an ICMP error, an RST or
// none.
type Response struct {
	Verdict Verdict
	Notify  bool
	Error   nat.ErrorKind // where Notify
	Reset   bool
}

// Plan describes a flow before it exists. It has every decision about the flow except the source
// port.
type Plan struct {
	services.Decision
	Response // a Verdict of Queued: the flow may be made

	Pin        affinity.Pin    // of the client; zero if it has none
	Tentative  bool            // the pin is tentative
	Pinned     bool            // the pin chose the backend
	Choice     services.Choice // by the scheduler, if there is no such pin
	Backend    *services.Backend
	KeepClient bool          // the backend sees the client's address
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
	SourceHost                  // the gateway's on the host link: the kernel forwards the packet
	SourceByRoute               // the route's preferred source
	SourcePool                  // a configured one
	SourceGroup                 // this gateway's in its group
)

// String returns the name of the kind.
func (s Source) String() string {
	return [...]string{"none", "client", "host link", "route", "pool", "group"}[s]
}

// Plan decides about a packet that has no flow. It checks whether the packet is for a frontend and
// whether it is allowed, and then chooses a backend. It changes nothing but a frontend's turn, and
// with DryRun not even the turn.
func (s *Planner) Plan(n *Plan, req *Request) {
	n.Decision, n.Random = s.Snap.Decide(req.Tuple), req.Random[1]
	switch {
	case n.Outcome == services.Unserved:
		s.unserved(n, req.Tuple)
	case s.Forged(req.Tuple.Src), s.Snap.FromFrontend(req.Tuple, n.Frontend), s.Snap.IntoTunnel(req.Tuple):
		n.Verdict = dropped(reason.SpoofedSource)
	case req.Tuple.Stateful() && !req.Opens && !n.Frontend.Service.Direct:
		n.Verdict, n.Reset = dropped(reason.NoFlow), s.resets(n, req)
	case n.Outcome == services.Denied:
		n.Verdict = dropped(reason.SourceRangeDenied)
	case req.TTL <= 1:
		n.reject(reason.TTLExceeded, nat.TimeExceeded)
	case n.Outcome == services.Reject:
		n.reject(reason.NoEndpoints, nat.PortUnreachable)
	case n.Outcome == services.Silence:
		n.Verdict = dropped(reason.NoLocalEndpoints)
	default:
		if r := s.limited(n, req); r != reason.None {
			n.Verdict = dropped(r)
			return
		}
		s.choose(n, req)
		s.address(n, req)
	}
}

// refuse drops the packet and notifies its sender.
func (n *Plan) reject(r reason.Drop, err nat.ErrorKind) {
	n.Response = Response{Verdict: dropped(r), Notify: true, Error: err}
}

// resets reports whether a packet of an unknown connection, which is not a SYN, gets an RST
// (docs/adr/0015). A client whose packets the Service drops silently gets none. Every node has each
// ClusterIP, so another node may know a connection to it. SCTP has ABORT instead of RST, which must
// not be sent without an examination of every chunk of the packet (RFC 9260 section 8.4). A client
// gets no RST, either, while this gateway does not have all flows of its group (Silent).
func (s *Planner) resets(n *Plan, req *Request) bool {
	return s.Snap.ResetUnknown && !s.Silent && req.Tuple.Proto == header.ProtoTCP && !req.RST &&
		n.Frontend.Kind != services.ClusterIP && n.Outcome != services.Denied && n.Outcome != services.Silence
}

// unserved decides about a packet for no frontend. The kernel gets it if the destination is an
// address of the node.
func (s *Planner) unserved(n *Plan, t *header.Tuple) {
	switch {
	case !s.Rejects(t.Dst):
		n.Verdict = toKernel
	case s.Forged(t.Src):
		n.Verdict = dropped(reason.SpoofedSource)
	case s.Snap.Owned(t.Dst)&services.AddrVIP == 0: // a late answer of a backend
		n.Verdict = dropped(reason.NoFlow)
	case s.Snap.UnservedPort == services.UnservedReject:
		n.reject(reason.FrontendRejected, nat.PortUnreachable)
	default:
		n.Verdict = dropped(reason.FrontendRejected)
	}
}

// Rejects reports whether packets from outside to an address are dropped if they belong to no
// frontend and no flow. The kernel must not get them, because it would route them back to the
// sender's side. A VIP may be left to another program, a source address of the gateway may not.
func (s *Planner) Rejects(dst header.Addr) bool {
	return s.Snap.Routed(dst) &&
		(s.Snap.UnservedPort != services.UnservedPass || s.Snap.Owned(dst)&services.AddrVIP == 0)
}

// HostSource reports whether an address is the gateway's own on the host link.
func (s *Planner) HostSource(a header.Addr) bool { return a == s.Host4 || a == s.Host6 }

// maxSpeculative bounds the backends that a speculative plan compares. Comparing more would cost
// more than the cache miss that it saves.
const maxSpeculative = 16

// choose sets the backend of an admitted plan: the backend of the client's pin if it is in the
// rule's set and not excluded, else the scheduler's choice.
func (s *Planner) choose(n *Plan, req *Request) {
	svc := n.Frontend.Service
	if svc.Pins() && s.Pins != nil {
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

// follow sets the plan's backend to the pinned backend, if that is in the set and not excluded.
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
	if n.Backend == nil { // the set is not of this snapshot
		n.reject(reason.NoEndpoints, nat.PortUnreachable)
		return
	}
	if n.Frontend.Service.Direct {
		n.Route, n.KeepClient = nexthop.Route{Hop: nexthop.Tunnel, Kind: nexthop.Tunneled}, true
		n.Source, n.Origin, n.Verdict = req.Tuple.Src, SourceClient, queued
		return
	}
	n.Route = s.Routes.to(s.View, n.Backend)
	// A backend that reaches itself would see its own address.
	n.KeepClient = n.Rule.KeepClient && req.Tuple.Src != n.Backend.Addr
	if n.KeepClient {
		n.Source, n.Origin = req.Tuple.Src, SourceClient
	} else {
		n.Source, n.Origin = s.source(n, req.Random[1]>>32, req.Tuple.V6)
	}
	n.Verdict = queued
	if n.Origin == SourceNone {
		n.Verdict = dropped(reason.NoRoute)
	}
}

// source chooses the gateway's source address towards a backend. If the kernel forwards the packet,
// it is the host link's address, so that replies come back by the host link. Otherwise it is the
// group's, the route's preferred source or a configured address. Other gateways of a group do not
// get the packets of a node port, so its flows have no source address of the group.
func (s *Planner) source(n *Plan, random uint64, v6 bool) (header.Addr, Source) {
	r, pool, byRoute, host, group := &n.Route, s.Snap.SNAT4, s.Snap.SNATByRoute4, s.Host4, s.Snap.Group4
	if v6 {
		pool, byRoute, host, group = s.Snap.SNAT6, s.Snap.SNATByRoute6, s.Host6, s.Snap.Group6
	}
	switch {
	case r.Kind == nexthop.Kernel && host == header.Addr{}:
		return host, SourceNone
	case r.Kind == nexthop.Kernel:
		return host, SourceHost
	case group != header.Addr{} && n.Frontend.Kind != services.NodePort:
		return group, SourceGroup
	// Replies to a source that the snapshot does not have yet would not reach a worker.
	case byRoute && s.Snap.Owned(r.Source)&services.AddrSNAT != 0:
		return r.Source, SourceByRoute
	case len(pool) == 0:
		return header.Addr{}, SourceNone
	}
	return pool[random%uint64(len(pool))], SourcePool
}

// Forged reports whether a source address belongs to this node, so that a packet from outside with
// it is forged. Such a packet gets no flow, and must not go to the kernel: on the host link the
// kernel accepts local sources, so it would accept the packet. An address that is only a VIP is a
// valid source: another gateway may share it, and an external IP may be the address of another
// node, which opens connections from ports that no frontend has (services.Snapshot.FromFrontend).
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
	return !svc.Pins() && !svc.Limits.Any() && !svc.Scheduler.InTurn() && !svc.Scheduler.ByLoad()
}
