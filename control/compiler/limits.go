package compiler

import (
	"fmt"

	"sluice.dev/sluice/control/maglev"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
)

// Limits of one Service. The author of a Service or of its EndpointSlices must not be able to use
// up what all Services share, or to block the loop for long.
const (
	// maxServiceFrontends is three times the default node-port range of clusters (30000 to 32767),
	// so a Service can have the whole range at two addresses. Compiling a change of such a Service
	// takes less than a tenth of a second.
	maxServiceFrontends = 8192
	// maxPortBackends is the size limit of one table (maglev.MaxNames), in each family.
	maxPortBackends = 1 << 16
	// maxServiceBackends is an eighth of all backends.
	maxServiceBackends = services.MaxBackends / 8
	// maxBackends leaves a sixteenth for numbers that wait for snapshots and flows to end.
	maxBackends = services.MaxBackends - services.MaxBackends/16
	// maxSlots are 256 MiB of tables over backends: 133,000 Services of ten endpoints have as many.
	// 10,486 endpoints take as many slots as 65,536, so the bound on backends is none on slots.
	maxSlots = 1 << 27
)

// wants is an upper bound of a unit's use of shared tables: duplicates of one endpoint count
// separately, and so do frontends and addresses that several units claim (see charge).
type wants struct{ frontends, addrs, sources, backends, slots int }

func (w *wants) add(o wants, by int) {
	w.frontends += by * o.frontends
	w.addrs += by * o.addrs
	w.sources += by * o.sources
	w.backends += by * o.backends
	w.slots += by * o.slots
}

// exceeds returns the first exceeded bound, for messages; "" if there is none. percent is the share
// of each table that may be used; 0: the whole table.
func (w *wants) exceeds(cfg *Config, percent int) string {
	for _, l := range [...]struct {
		what      string
		want, max int
	}{
		{"frontends", w.frontends, cfg.MaxFrontends},
		{"addresses", w.addrs, cfg.MaxAddrs},
		{"sources of replies", w.sources, cfg.MaxSources},
		{"backends", w.backends, maxBackends},
		{"slots of tables over backends", w.slots, maxSlots},
	} {
		most := l.max
		if percent > 0 && most > 0 {
			most = max(1, most*percent/100)
		}
		if most > 0 && l.want > most {
			return fmt.Sprintf("%d %s", most, l.what)
		}
	}
	return ""
}

// total is the use of the shared tables by all units, and by each namespace. Namespaces that use
// nothing have no entry.
type total struct {
	all wants
	of  map[string]wants
}

func newTotal() total { return total{of: map[string]wants{}} }

func (t *total) add(namespace string, w wants, by int) {
	t.all.add(w, by)
	n := t.of[namespace]
	if n.add(w, by); n == (wants{}) {
		delete(t.of, namespace)
	} else {
		t.of[namespace] = n
	}
}

// fits reports whether all units are within every table, and every namespace within its share.
func (t *total) fits(cfg *Config) bool {
	if t.all.exceeds(cfg, 0) != "" {
		return false
	}
	for _, n := range t.of {
		if n.exceeds(cfg, cfg.NamespaceShare) != "" {
			return false
		}
	}
	return true
}

// refuses returns the reason that another unit, which wants w, does not fit; "" if it fits.
func (t *total) refuses(cfg *Config, namespace string, w wants) string {
	n := t.of[namespace]
	n.add(w, +1)
	if limit := n.exceeds(cfg, cfg.NamespaceShare); limit != "" && cfg.NamespaceShare > 0 {
		return fmt.Sprintf("there is room for %s of one namespace (proxy.namespaceShare), and older Services of this "+
			"one have it", limit)
	}
	all := t.all
	all.add(w, +1)
	if limit := all.exceeds(cfg, 0); limit != "" {
		return fmt.Sprintf("all Services together may have %s, and older Services use them all", limit)
	}
	return ""
}

// fitting returns how many of a Service's ports, from the first on, stay within
// maxServiceFrontends, and how many of these ports' frontends have an address.
func (c *settings) fitting(s *objects.Service) (ports, frontends int) {
	if !s.Served() {
		return 0, 0
	}
	vips := 0
	for _, v := range s.VIPs {
		if c.serves(s, v) {
			vips++
		}
	}
	all := 0
	for _, p := range s.Ports {
		all += vips
		for f := range s.Families {
			if c.nodePorts(s, &p) && s.Families[f] {
				all++
			}
		}
		if all > maxServiceFrontends {
			break
		}
		ports++
	}
	return ports, ports * vips
}

// wantsOf returns the wants of a Service with its slices, whether it is denied or not. nodes is the
// number of Nodes: each is a backend of each port of a direct Service (nodeMembers).
func (c *settings) wantsOf(service *objects.Service, list []*objects.Slice, nodes int) (w wants) {
	ports, frontends := c.fitting(service)
	if ports == 0 {
		return w
	}
	w.frontends = frontends
	for _, v := range service.VIPs {
		if c.serves(service, v) {
			w.addrs++
		}
	}
	ends := 0
	for f := range service.Families {
		if !service.Families[f] {
			continue
		}
		wanted := make(map[portID]*portWants, ports)
		for _, p := range service.Ports[:ports] {
			wanted[portID{p.Name, p.Proto}] = &portWants{needs: c.needs(service, p, f)}
		}
		for _, s := range list {
			if objects.Family(s.V6) == f {
				backends, sources, addrs := c.wantsOfSlice(wanted, s)
				if !c.direct(service) {
					w.backends += backends
				}
				w.sources += sources
				ends += addrs
			}
		}
		if c.direct(service) {
			w.backends += ports * nodes
		}
		if tableOf(c.schedulerOf(service)) != noTable {
			for _, p := range wanted {
				w.slots += p.slots()
			}
		}
	}
	w.slots = min(w.slots, numSets*408*maxServiceBackends) // the maximum is 65,537 slots for 161 endpoints
	w.backends, w.sources = min(w.backends, maxServiceBackends), min(w.sources, maxServiceBackends)
	w.addrs += min(ends, maxServiceBackends)
	return w
}

// portWants counts the endpoints that slices list for a service port in one family.
type portWants struct {
	needs
	endpoints int
}

// slots returns the slots of the port's tables, if all of its endpoints take new flows.
func (p *portWants) slots() (n int) {
	if p.endpoints == 0 {
		return 0
	}
	for _, needed := range p.sets {
		if needed {
			n += maglev.Size(p.endpoints)
		}
	}
	return n
}

func (c *settings) wantsOfSlice(ports map[portID]*portWants, s *objects.Slice) (backends, sources, addrs int) {
	here := -1 // endpoints on this node, when they are counted
	for _, sp := range s.Ports {
		p := ports[portID{sp.Name, sp.Proto}]
		if p == nil {
			continue
		}
		backends += len(s.Endpoints)
		p.endpoints += len(s.Endpoints)
		kept := 0
		switch p.keep {
		case keepAll:
			kept = len(s.Endpoints)
		case keepLocal:
			if here < 0 {
				here = c.localEndpoints(s)
			}
			kept = here
		}
		sources += kept
		addrs = max(addrs, kept)
	}
	return backends, sources, addrs
}

func (c *settings) localEndpoints(s *objects.Slice) (n int) {
	for i := range s.Endpoints {
		if name := s.Node(&s.Endpoints[i]); name != "" && name == c.NodeName {
			n++
		}
	}
	return n
}
