package daemon

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/gateway/ports"
	"sluice.dev/sluice/gateway/reach"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/serve/status"
)

// reachability is whether packets can reach backends and clients. The goroutine that watches the
// ports looks; health checks read what it found.
type reachability struct {
	judge reach.Judge
	// backends are those of snapshot and ways.
	backends []neigh.Way
	snapshot *services.Snapshot
	ways     *neigh.Ways

	impaired impairments

	found atomic.Pointer[found]
}

type found struct {
	why     []string
	blocked []ports.Link
	// impaired are the Services of VIPs that are likely to fail from here, and why. It is another
	// map only where it says something else.
	impaired map[vipService]string
}

// watchLocalPorts tells the kernel program if net.ipv4.ip_local_port_range has changed.
func (d *Daemon) watchLocalPorts(context.Context) {
	if !d.steer.LocalPortsChanged() {
		return
	}
	if err := d.applySettings(); err != nil {
		d.log.Error("kernel program settings", "error", err)
	}
}

// lookReach judges whether backends can be reached. One goroutine at a time may call it.
func (d *Daemon) lookReach() {
	r := &d.reach
	s, w := d.snapshot(), d.mirror.Ways() // before the links, as Judge.Look requires
	newWays := r.ways != w
	if r.snapshot != s || newWays {
		r.snapshot, r.ways, r.backends = s, w, backendWays(s, w)
	}
	facts := reach.Facts{Backends: r.backends, Defaults: w.Defaults()}
	f := &found{}
	for _, l := range d.ports.Links(newWays) {
		link := reach.Link{Name: l.Name, Why: l.Why}
		if l.Host {
			facts.Host = &link
		} else {
			facts.Links = append(facts.Links, link)
		}
		if l.Why != "" {
			f.blocked = append(f.blocked, l)
		}
	}
	f.why = r.judge.Look(&facts)
	f.impaired = r.impaired.look(&routed{snapshot: s, ways: w, to: w.To, hops: d.hops, view: d.hops.View(),
		facts: &facts, lost: r.judge.Lost}, time.Now())
	before := r.found.Swap(f)
	if before == nil || !slices.Equal(before.why, f.why) {
		d.logReach(before != nil, f.why)
	}
	d.logImpaired(before, f)
}

// logImpaired writes a line when the first VIP becomes impaired and when the last one is not any
// more: between them tenants' endpoints come and go, and the announcer says so of each.
func (d *Daemon) logImpaired(before, now *found) {
	was := before != nil && len(before.impaired) > 0
	switch {
	case !was && len(now.impaired) > 0:
		for of, why := range now.impaired {
			d.log.Warn("VIPs are impaired, and announcers prefer other gateways for them", "vips", len(now.impaired),
				"one", of.vip, "service", of.namespace+"/"+of.name, "why", why)
			return
		}
	case was && len(now.impaired) == 0:
		d.log.Info("no VIP is impaired any more")
	}
}

// backendWays returns the ways to backends that may get new flows, each once.
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

func (d *Daemon) logReach(again bool, why []string) {
	switch {
	case len(why) > 0:
		d.log.Error("packets do not get through: health checks say so", "why", why)
	case again:
		d.log.Info("packets get through again")
	}
}

// unreachable returns why packets cannot reach backends or clients.
func (d *Daemon) unreachable() []string {
	if f := d.reach.found.Load(); f != nil {
		return f.why
	}
	return nil
}

// linkConditions reports each interface that no packet can pass, also where others of its side can.
func (d *Daemon) linkConditions() (list []status.ConditionView) {
	f := d.reach.found.Load()
	if f == nil {
		return nil
	}
	for _, l := range f.blocked {
		list = append(list, status.Failed("link", "nothing is received on interface "+l.Name+
			", and what should leave by it is dropped: it "+l.Why))
	}
	return list
}
