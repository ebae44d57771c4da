package daemon

import (
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/cmd/sluice/internal/boottime"
	"sluice.dev/sluice/control/hostlink"
	"sluice.dev/sluice/control/status"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/xdpprog"
)

// explainer answers questions about packets: a participant of the flow table of its own,
// with a snapshot of its own, so that all of an answer is about one.
type explainer struct {
	mu       sync.Mutex // one question at a time
	e        *fastpath.Explainer
	services services.Handle
	closed   bool // the table's memory may be gone
}

// newExplainer takes a place in the flow table, if there is one.
func newExplainer(shared tables, hops *nexthop.Table, host *hostlink.HostLink) (*explainer, error) {
	x := new(explainer)
	c := fastpath.ExplainerConfig{Services: &x.services, Hops: hops, Flows: shared.flows, Affinity: shared.pins}
	if host != nil && host.Addr4.IsValid() {
		c.HostSource4 = header.AddrFrom(host.Addr4)
	}
	if host != nil && host.Addr6.IsValid() {
		c.HostSource6 = header.AddrFrom(host.Addr6)
	}
	var err error
	x.e, err = fastpath.NewExplainer(c)
	return x, err
}

var errExplainerClosed = errors.New("the daemon is ending: flows can no longer be read")

// ask says what a snapshot's worker would do with a packet.
func (x *explainer) ask(s *services.Snapshot, t header.Tuple, opens bool, now flowtable.Time) (fastpath.Explanation, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return fastpath.Explanation{}, errExplainerClosed
	}
	x.services.Store(s)
	return x.e.Explain(t, opens, now), nil
}

func (x *explainer) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed = true; x.e != nil {
		x.e.Close()
	}
}

// Explain implements status.Gateway.
func (d *Daemon) Explain(q *status.ExplainQuery) (status.ExplainView, error) {
	t := q.Tuple()
	a := answer{query: q, snapshot: d.snapshot(), tuple: t, closed: !d.isOpen()}
	a.match, a.unread = d.steer.Steers(&t)
	var err error
	if a.x, err = d.path.explainer.ask(a.snapshot, t, !q.Established, flowtable.Time(boottime.Nanos())); err != nil {
		return status.ExplainView{}, err
	}
	if h := a.x.Hop; h != nil && h.Kind == nexthop.OnLink && h.Ready {
		a.hop = d.nextHopOf(a.x.Out.Dst.Netip())
	} else if a.x.Route.Kind == nexthop.OnLink {
		near := a.x.Out.Dst.Netip() // who is asked for where no hop is known yet
		if h != nil && a.x.Route.Hop != 0 {
			near = h.Addr.Netip()
		}
		if failedNeighbour(near) {
			a.silent = near
		}
	}
	return a.view(status.ProblemViews(d.loop.Status().Problems)), nil
}

// failedNeighbour says whether the kernel asks for a neighbour on any link without an answer, or
// did (NUD_INCOMPLETE, NUD_FAILED of include/uapi/linux/neighbour.h). What cannot be read is no.
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

// answer is what an answer is made of.
type answer struct {
	query    *status.ExplainQuery
	snapshot *services.Snapshot
	tuple    header.Tuple
	x        fastpath.Explanation

	match  xdpprog.Match // of the kernel program
	unread error         // why match is not known
	closed bool          // the kernel program is not on the interfaces yet
	silent netip.Addr    // the neighbour of the next hop, if it does not answer
	hop    string        // how the next hop is reached; "" if the explanation says all
	// offline is not nil where no gateway was asked.
	offline *offline
}
