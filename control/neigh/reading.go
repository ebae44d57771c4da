package neigh

import (
	"maps"
	"net/netip"
	"time"

	"github.com/gaissmai/bart"
)

// read does the reading that pace scheduled. After an error the reading is still due.
func (m *Mirror) read() error {
	all, forced := m.pace.all, m.pace.forced
	m.pace.dirty, m.pace.all, m.pace.forced = false, false, false
	var err error
	if all {
		err = m.readAll(forced)
	} else {
		err = m.readTopology(forced)
	}
	if err != nil {
		// A dump that the kernel interrupted because the tables changed under it
		// is the usual case.
		m.pace.dirty, m.pace.forced = true, m.pace.forced || forced
		m.pace.all = m.pace.all || all
		return err
	}
	m.readyOnce.Do(func() { close(m.ready) })
	return nil
}

// readAll reads topology, rules and neighbours, and counts the neighbours that changed without an
// event.
func (m *Mirror) readAll(forced bool) error {
	if err := m.readTopology(forced); err != nil {
		return err
	}
	if err := m.readRules(); err != nil {
		return err
	}
	n, err := m.readNeighbours()
	if err != nil {
		return err
	}
	m.pace.dirty, m.pace.all = false, false // what readTopology requested is done
	if !forced {                            // at the start nothing could have been announced
		m.counts.drift += uint64(n)
	}
	return nil
}

// readTopology reads interfaces, addresses and routes and publishes what differs.
func (m *Mirror) readTopology(forced bool) error {
	began := time.Now()
	defer func() { m.pace.done(m.now(), time.Since(began)) }()
	t, err := m.kernel.topology()
	if err != nil {
		return err
	}
	relinked := m.takeLinkChange()
	devices := devicesOf(t.links, m.links)
	addresses := addressesOf(t.addrs, devices)
	own := sourcesOf(addresses)
	routes := newRouteCompiler(m.targets.Size(), devices, own, m.host)
	if err := m.kernel.routes(routes.add); err != nil {
		m.pace.forced = m.pace.forced || relinked
		return err
	}
	m.beat.Beat()       // a dump of many routes and what follows from it are judged apart
	m.counts.readings++ // nothing fails from here on: what changes is noticed once
	forced = forced || relinked
	oursChanged := !sameOwnership(devices, m.devices)
	devicesChanged := !maps.Equal(devices, m.devices)
	m.devices = devices
	m.setAddresses(addresses)
	if oursChanged {
		m.dropForeign()
	}
	next := routes.targets()
	m.setSources(own.all(next, devices))
	multipath := multipathWarnings(routes.spread, next)
	logNew(m.log, multipath, m.multipath)
	m.multipath = multipath
	routesChanged := forced || !sameTargets(m.targets, next)
	if routesChanged {
		m.targets = new(bart.Table[target])
		for p, t := range next {
			m.targets.Insert(p, t)
		}
		m.publish()
	}
	if routesChanged || devicesChanged {
		m.publishWays()
	}
	if devicesChanged || forced {
		m.rewriteHops()
	}
	if oursChanged {
		// Events of neighbours on an interface that was not ours were ignored.
		m.pace.everything()
	}
	return nil
}

func (m *Mirror) takeLinkChange() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.want == nil {
		return false
	}
	m.links, m.host, m.want = m.want.links, m.want.host, nil
	return true
}

// dropForeign forgets neighbours on interfaces that were deleted or are not ours any more.
func (m *Mirror) dropForeign() {
	ours := func(k neighKey) bool {
		d, ok := m.devices[int(k.dev)]
		return ok && d.link != notOurs
	}
	for k := range m.known {
		if !ours(k) {
			delete(m.known, k)
		}
	}
	for k, n := range m.tracked {
		if !ours(k) {
			m.forget(n)
		}
	}
}

func sameOwnership(a, b map[int]device) bool {
	count := func(x, y map[int]device) (n int, same bool) {
		for i, d := range x {
			if d.link != notOurs {
				if n++; y[i].link != d.link || y[i].name != d.name {
					return n, false
				}
			}
		}
		return n, true
	}
	n, same := count(a, b)
	k, _ := count(b, a)
	return same && n == k
}

func sameTargets(t *bart.Table[target], next map[netip.Prefix]target) bool {
	if t.Size() != len(next) {
		return false
	}
	for p, v := range next {
		if old, ok := t.Get(p); !ok || old != v {
			return false
		}
	}
	return true
}
