package neigh

import (
	"maps"
	"net/netip"
	"time"

	"github.com/gaissmai/bart"
)

// read does the scheduled reading. After an error it is scheduled again.
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
		// The usual cause is a dump that the kernel interrupted because the tables changed.
		m.pace.dirty, m.pace.forced = true, m.pace.forced || forced
		m.pace.all = m.pace.all || all
		return err
	}
	m.readyOnce.Do(func() { close(m.ready) })
	return nil
}

// readAll reads topology, rules and neighbours, and counts the neighbours that have changed without
// an event.
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
	m.pace.dirty, m.pace.all = false, false // readTopology may have requested the reading that is now done
	if !forced {                            // before the first reading there were no announcements
		m.counts.drift += uint64(n)
	}
	return nil
}

// readTopology reads interfaces, addresses and routes, and publishes the differences.
func (m *Mirror) readTopology(forced bool) error {
	began := time.Now()
	defer func() { m.pace.done(m.now(), time.Since(began)) }()
	t, err := m.kernel.topology()
	if err != nil {
		return err
	}
	linksChanged := m.takeLinkChange()
	devices := devicesOf(t.links, m.links)
	addresses := addressesOf(t.addrs, devices)
	own := sourcesOf(addresses)
	routes := newRouteCompiler(m.targets.Size(), devices, own, m.host)
	if err := m.kernel.routes(routes.add); err != nil {
		m.pace.forced = m.pace.forced || linksChanged
		return err
	}
	m.beat.Beat()       // between a dump of many routes and the work on them, which both take long
	m.counts.readings++ // no errors from here on, so each change is noticed once
	forced = forced || linksChanged
	servedChanged := !sameOwnership(devices, m.devices)
	devicesChanged := !maps.Equal(devices, m.devices)
	m.devices = devices
	m.setAddresses(addresses)
	if servedChanged {
		m.forgetUnserved()
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
	if servedChanged {
		// Events of neighbours were ignored while their interface was not served.
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

// forgetUnserved forgets neighbours on interfaces that were deleted or are no longer served.
func (m *Mirror) forgetUnserved() {
	served := func(k neighKey) bool {
		d, ok := m.devices[int(k.dev)]
		return ok && d.link != noLink
	}
	m.known.removeAllBut(served)
	for k, n := range m.tracked {
		if !served(k) {
			m.forget(n)
		}
	}
}

func sameOwnership(a, b map[int]device) bool {
	count := func(x, y map[int]device) (n int, same bool) {
		for i, d := range x {
			if d.link != noLink {
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
