package daemon

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/gateway/ports"
	"sluice.dev/sluice/gateway/reach"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/serve/status"
)

// reachability checks whether packets can reach backends and clients. Only the goroutine that
// watches the ports calls look. Any goroutine may read the result.
type reachability struct {
	judge reach.Judge
	// backends are the routes to the backends of snapshot by ways.
	backends []neigh.Way
	snapshot *services.Snapshot
	ways     *neigh.Ways

	impaired impairments

	last atomic.Pointer[reached] // nil before the first look
}

// reached is the result of one look. It is never changed.
type reached struct {
	why     []string     // packets cannot reach backends or clients; empty if they can
	blocked []ports.Link // links that pass no packets
	// impaired has the Services of VIPs that are likely to fail from here, with the reason. It is
	// the same map as before if it is equal.
	impaired map[vipService]string
}

// look checks the routes of a snapshot. links returns the state of the links, and is called after
// the caller has read snapshot and ways (reach.Judge.Look). checks calls its argument for the last
// check of each endpoint.
func (r *reachability) look(
	log *slog.Logger, s *services.Snapshot, w *neigh.Ways, hops *nexthop.Table, links func(newWays bool) []ports.Link,
	checks func(func(a netip.Addr, ok bool, at time.Time)),
) {
	newWays := r.ways != w
	if r.snapshot != s || newWays {
		r.snapshot, r.ways, r.backends = s, w, backendWays(s, w)
	}
	facts := reach.Facts{Backends: r.backends, Defaults: w.Defaults()}
	now := &reached{}
	for _, l := range links(newWays) {
		link := reach.Link{Name: l.Name, Why: l.Why}
		if l.Host {
			facts.Host = &link
		} else {
			facts.Links = append(facts.Links, link)
		}
		if l.Why != "" {
			now.blocked = append(now.blocked, l)
		}
	}
	now.why = r.judge.Look(&facts)
	now.impaired = r.impaired.look(&routed{snapshot: s, ways: w, to: w.To, route: w.Route, hops: hops,
		view: hops.View(), facts: &facts, lost: r.judge.Lost, checks: checks}, time.Now())
	before := r.last.Swap(now)
	switch changed := before == nil || !slices.Equal(before.why, now.why); {
	case changed && len(now.why) > 0:
		log.Error("packets do not get through: health checks fail", "why", now.why)
	case changed && before != nil:
		log.Info("packets get through again")
	}
	logImpaired(log, before, now)
}

// logImpaired writes a line when the first VIP becomes impaired and when the last one has
// recovered. In between endpoints of tenants come and go, and the announcer logs each VIP.
func logImpaired(log *slog.Logger, before, now *reached) {
	was := before != nil && len(before.impaired) > 0
	switch {
	case !was && len(now.impaired) > 0:
		for of, why := range now.impaired {
			log.Warn("VIPs are impaired, and announcers prefer other gateways for them", "vips", len(now.impaired),
				"one", of.vip, "service", of.namespace+"/"+of.name, "why", why)
			return
		}
	case was && len(now.impaired) == 0:
		log.Info("no VIP is impaired any more")
	}
}

// backendWays returns the routes to backends that may get new flows, each once.
func backendWays(s *services.Snapshot, w *neigh.Ways) (list []neigh.Way) {
	s.Backends(func(b *services.Backend) bool {
		if b.Flags&(services.BackendReady|services.BackendServing) == 0 {
			return true
		}
		if way := w.To(b.Addr.Netip()); !slices.Contains(list, way) {
			list = append(list, way)
		}
		return true
	})
	return list
}

// conditions reports each interface that passes no packet, also if another interface leads to the
// same side.
func (r *reachability) conditions() (list []status.ConditionView) {
	last := r.last.Load()
	if last == nil {
		return nil
	}
	for _, l := range last.blocked {
		list = append(list, status.Failed("link", "nothing is received on interface "+l.Name+
			", and packets that should leave by it are dropped: it "+l.Why))
	}
	return list
}

// same reports whether two results have the same impairments.
func (r *reached) same(as *reached) bool {
	if r == nil || as == nil {
		return r == as
	}
	return maps.Equal(r.impaired, as.impaired)
}

// impairment returns why new connections to a Service at a VIP are likely to fail.
func (r *reached) impairment(of vipService) string {
	if r == nil {
		return ""
	}
	return r.impaired[of]
}
