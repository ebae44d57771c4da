// Package explain returns the verdict on a packet and the reasons, in the order in which the packet
// passes the kernel program, the parser and a worker. The workers' own code makes the worker's
// decisions (decide.Explainer). Explainer answers for a running gateway; Offline answers from
// manifests and a configuration. Both build their answers in view.go, with the advice of advice.go.
package explain

import (
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/gateway/offline"
	"sluice.dev/sluice/host/hostlink"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/xdpprog"
)

// Config has the parts that an Explainer shares with the workers.
type Config struct {
	Flows    *flowtable.Table
	Affinity *affinity.Table
	Hops     *nexthop.Table
	Host     *hostlink.HostLink // nil if there is none
	Copies   *copies.Board      // nil if the gateway is in no group
}

// Explainer explains packets. It is a participant of the flow table and has its own handle for
// snapshots, so that one snapshot decides an answer.
type Explainer struct {
	mu       sync.Mutex // one call at a time
	e        *decide.Explainer
	services services.Handle
	closed   bool // the table's memory may be unmapped
}

// New registers a participant in the flow table, if there is a table.
func New(c Config) (*Explainer, error) {
	x := new(Explainer)
	fc := decide.ExplainerConfig{Services: &x.services, Hops: c.Hops, Flows: c.Flows, Affinity: c.Affinity}
	if c.Copies != nil {
		fc.MayReset = c.Copies.MayReset
	}
	if h := c.Host; h != nil && h.Addr4.IsValid() {
		fc.HostSource4 = header.AddrFrom(h.Addr4)
	}
	if h := c.Host; h != nil && h.Addr6.IsValid() {
		fc.HostSource6 = header.AddrFrom(h.Addr6)
	}
	var err error
	x.e, err = decide.NewExplainer(fc)
	return x, err
}

var errClosed = errors.New("the daemon is ending: flows can no longer be read")

// ask returns the worker's decision on a packet with one snapshot.
func (x *Explainer) ask(
	s *services.Snapshot, t header.Tuple, opens bool, now flowtable.Time,
) (decide.Explanation, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return decide.Explanation{}, errClosed
	}
	x.services.Store(s)
	return x.e.Explain(t, opens, now), nil
}

// Pause blocks calls until Resume, so that the Explainer does not use the flow table. Even a lookup
// writes: it frees records that other participants have ended.
func (x *Explainer) Pause() { x.mu.Lock() }

// Resume ends Pause.
func (x *Explainer) Resume() { x.mu.Unlock() }

// Close unregisters from the flow table. Later calls return an error. x may be nil.
func (x *Explainer) Close() {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed = true; x.e != nil {
		x.e.Close()
	}
}

// Gateway is the part of a gateway's state that the Explainer does not share with the workers.
type Gateway struct {
	Snapshot *services.Snapshot
	Open     bool // the kernel program is attached to the interfaces
	// Steers returns the rule by which the kernel program sends a packet to a worker.
	Steers func(*header.Tuple) (xdpprog.Match, error)
	// Denies returns the entry that denies a client, nil if none does. Denies may be nil.
	Denies func(netip.Addr) *status.DenialView
	// NextHop describes where packets to an address go.
	NextHop  func(netip.Addr) string
	Problems []status.ProblemView // of all objects
	Group    *status.GroupView    // nil if the gateway is in no group
	// UnfinishedChecksums is the workers' counter (stats.Block).
	UnfinishedChecksums uint64
}

// Explain explains a packet for a running gateway.
func (x *Explainer) Explain(q *status.ExplainQuery, g *Gateway) (status.ExplainView, error) {
	t := q.Tuple()
	a := answer{query: q, snapshot: g.Snapshot, tuple: t, closed: !g.Open, unfinished: g.UnfinishedChecksums,
		group: g.Group}
	a.match, a.unread = g.Steers(&t)
	if g.Denies != nil {
		a.denied = g.Denies(t.Src.Netip())
	}
	var err error
	if a.x, err = x.ask(a.snapshot, t, !q.Established, flowtable.Time(boottime.Nanos())); err != nil {
		return status.ExplainView{}, err
	}
	towards := a.x.Towards()
	if h := a.x.Hop; h != nil && h.Kind == nexthop.OnLink && h.Ready {
		a.hop = g.NextHop(towards.Netip())
	} else if a.x.Route.Kind == nexthop.OnLink {
		near := towards.Netip() // the neighbour to resolve if no hop is known yet
		if h != nil && a.x.Route.Hop != 0 {
			near = h.Addr.Netip()
		}
		if failedNeighbour(near) {
			a.unanswered = near
		}
	}
	return a.view(g.Problems), nil
}

// failedNeighbour reports whether a neighbour on any link does not answer the kernel
// (NUD_INCOMPLETE, NUD_FAILED in include/uapi/linux/neighbour.h). If the list cannot be read, it
// reports false.
func failedNeighbour(a netip.Addr) bool {
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
	}
	list, err := netlink.NeighList(0, family)
	return err == nil && slices.ContainsFunc(list, func(n netlink.Neigh) bool {
		ip, ok := netip.AddrFromSlice(n.IP)
		return ok && ip.Unmap() == a && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) != 0
	})
}

// answer has the facts that an answer is built from.
type answer struct {
	query    *status.ExplainQuery
	snapshot *services.Snapshot
	tuple    header.Tuple
	x        decide.Explanation

	match      xdpprog.Match      // of the kernel program
	unread     error              // why match could not be read
	denied     *status.DenialView // the entry that denies the source; nil if none does
	closed     bool               // the kernel program is not attached to the interfaces yet
	unanswered netip.Addr         // the neighbour of the next hop, if it does not answer
	unfinished uint64             // checksums of segments that the gateway received
	group      *status.GroupView  // nil if the gateway is in no group
	hop        string             // how the next hop is reached; "" if the explanation has it
	// offline is nil if a gateway answers.
	offline *offline.Gateway
}
