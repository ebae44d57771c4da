package neigh

import (
	"container/list"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/nat/header"
)

// neighbour is a tracked neighbour: a gateway, or a destination that a worker requested.
type neighbour struct {
	key         neighKey
	gateway     bool // a route names it
	host        bool // a worker requested it as a destination
	first       bool // host: by a request of ResolveFirst
	hosted      bool // host: a host route leads to it
	ready       bool // mac is known and has not failed
	failed      bool // it was ready, and has not answered since
	mac         [6]byte
	hops        []hopKey      // its hops, one for each route MTU
	requestedAt time.Time     // last request of a worker
	usedAt      time.Time     // last call of kernel.use or kernel.verify
	verifiedAt  time.Time     // last call of kernel.verify
	sentAt      time.Time     // when keepFresh last noticed packets to it
	silent      int           // waiting: requests to the kernel without an answer
	charge      *charge       // of the last one; nil if there is none
	list        *list.List    // its list in waiting; nil if it is not waiting
	place       *list.Element // in list
}

const (
	// retryInterval is the interval of requests for a neighbour that does not answer.
	retryInterval = time.Second
	// silentInterval is the first interval for a neighbour that has never answered: the kernel
	// itself asks three times in 3 s. Later intervals are twice as long.
	silentInterval = 4 * time.Second
	// usesPerTick bounds the calls of kernel.use and kernel.verify together in one second. If more
	// neighbours are in use than it allows in a VerifyInterval (2560), each is verified less often.
	usesPerTick = 512
)

// valid has the states in which the kernel itself would send to the MAC address.
const valid = netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_REACHABLE |
	netlink.NUD_PROBE | netlink.NUD_STALE | netlink.NUD_DELAY

// fixed has the states that an entry's owner sets, and in which the kernel does not confirm it.
const fixed = netlink.NUD_PERMANENT | netlink.NUD_NOARP

// usableNeighbour is an entry of the kernel in one of the valid states.
type usableNeighbour struct {
	mac   [6]byte
	fixed bool
}

// usableNeighbours has the usable neighbours of the kernel on served links. Only the goroutine of
// Run changes them.
type usableNeighbours struct {
	mu sync.RWMutex // guards by
	by map[neighKey]usableNeighbour
}

func (u *usableNeighbours) get(k neighKey) (usableNeighbour, bool) {
	u.mu.RLock()
	defer u.mu.RUnlock()
	n, ok := u.by[k]
	return n, ok
}

func (u *usableNeighbours) put(k neighKey, n usableNeighbour) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.by[k] = n
}

func (u *usableNeighbours) remove(k neighKey) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.by, k)
}

// removeAllBut removes the neighbours that are not to be kept, and returns them.
func (u *usableNeighbours) removeAllBut(kept func(neighKey) bool) (removed []neighKey) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for k := range u.by {
		if !kept(k) {
			removed = append(removed, k)
			delete(u.by, k)
		}
	}
	return removed
}

// neighbourChanged applies an announcement, or one entry of a reading. It reports whether a tracked
// neighbour changed.
func (m *Mirror) neighbourChanged(kn *netlink.Neigh, gone bool) bool {
	key, ok := m.keyOf(kn)
	if !ok {
		return false
	}
	mac, usable := usableMAC(kn)
	if gone || !usable {
		m.known.remove(key)
	} else {
		m.known.put(key, usableNeighbour{mac, kn.State&fixed != 0})
	}
	n := m.tracked[key]
	if n == nil {
		return false
	}
	if (gone || usable || kn.State&netlink.NUD_FAILED != 0) && n.charge.end() && n.first {
		defer m.requestNext()
	}
	switch {
	case gone:
		// The kernel removed the entry, but it did not fail: the last MAC address stays until the
		// kernel answers a new request. The entry of a host that has never answered goes because it
		// does not answer, so its interval counts on.
		if !n.waits() {
			m.useAgain(n)
		}
		return true
	case usable:
		changed := !n.ready || n.mac != mac
		if n.failed {
			m.logNeighbour("next hop answers again", n)
		}
		n.ready, n.failed, n.mac = true, false, mac
		m.waiting.remove(n)
		if changed {
			m.hopChanged(n)
		}
		return changed
	case kn.State&netlink.NUD_FAILED != 0 && n.ready:
		n.ready, n.failed = false, true
		m.logNeighbour("next hop does not answer", n)
		m.hopChanged(n)
		m.useAgain(n)
		return true
	}
	return false
}

// neighbourLines bounds the lines about neighbours: clients on a link come and go.
const neighbourLines = 3

// logNeighbour logs a change of a neighbour that has answered before. Others are not logged,
// because any packet may name an address that no host has.
func (m *Mirror) logNeighbour(what string, n *neighbour) {
	m.lines.Info(m.log, m.now(), what, "address", n.key.addr.Netip(), "interface", m.devices[int(n.key.dev)].name)
}

// keyOf returns the key of a kernel neighbour; false if it is not on a served link.
func (m *Mirror) keyOf(kn *netlink.Neigh) (neighKey, bool) {
	d, ok := m.devices[kn.LinkIndex]
	if !ok || d.link == noLink || kn.Flags&netlink.NTF_PROXY != 0 {
		return neighKey{}, false
	}
	a, ok := netip.AddrFromSlice(kn.IP)
	if !ok || a.IsMulticast() {
		return neighKey{}, false
	}
	return neighKey{int32(kn.LinkIndex), header.AddrFrom(a)}, true
}

func usableMAC(kn *netlink.Neigh) (mac [6]byte, ok bool) {
	if kn.State&valid == 0 || len(kn.HardwareAddr) != len(mac) {
		return mac, false
	}
	return [6]byte(kn.HardwareAddr), true
}

// readNeighbours reads and applies all neighbours, and returns how many tracked neighbours were
// different.
func (m *Mirror) readNeighbours() (int, error) {
	all, err := m.kernel.neighbours()
	if err != nil {
		return 0, err
	}
	differences := 0
	seen := make(map[neighKey]struct{}, len(all))
	for i := range all {
		if key, ok := m.keyOf(&all[i]); ok {
			seen[key] = struct{}{}
			if m.neighbourChanged(&all[i], false) {
				differences++
			}
		}
	}
	for _, key := range m.known.removeAllBut(func(k neighKey) bool { _, ok := seen[k]; return ok }) {
		if n := m.tracked[key]; n != nil {
			differences++
			m.useAgain(n)
		}
	}
	return differences, nil
}

// track returns the neighbour of a key, which is tracked from now on.
func (m *Mirror) track(key neighKey, gateway bool) *neighbour {
	n := m.tracked[key]
	if n == nil {
		entry, ready := m.known.get(key)
		n = &neighbour{key: key, mac: entry.mac, ready: ready}
		m.tracked[key] = n
	}
	if gateway {
		m.waiting.remove(n)
	}
	return n
}

// resolve handles a worker's request for a destination without a hop, or whose hop is not ready. It
// ignores requests for unknown destinations without a place.
func (m *Mirror) resolve(a header.Addr, first bool) {
	t, ok := m.targets.Lookup(a.Netip())
	if !ok || t.kind != nexthop.OnLink {
		return
	}
	key := neighKey{t.dev, a}
	if t.via != (header.Addr{}) {
		key.addr = t.via
	}
	if _, known := m.known.get(key); !known && key.addr == a && m.tracked[key] == nil && !m.mayWait(key, first) {
		return
	}
	n := m.track(key, t.via != (header.Addr{}))
	n.requestedAt, n.first = m.now(), n.first || first
	if key.addr == a {
		n.host = true
		m.admitHost(n)
		if oldest := m.waiting.requested(n); oldest != nil {
			m.forget(oldest)
		}
	}
	m.use(n)
}

// use makes the kernel resolve n, or confirm it if it is stale. It does nothing and returns false
// if the last call was less than an interval ago.
//
// It must not send NTF_USE for a fixed entry, which would clear NUD_PERMANENT
// (net/core/neighbour.c, __neigh_update, since Linux 5.16). The kernel would then probe the entry
// and remove it, if an operator has set it because the neighbour answers no requests.
func (m *Mirror) use(n *neighbour) (requested bool) {
	now := m.now()
	interval := m.probeInterval
	entry, known := m.known.get(n.key)
	if entry.fixed {
		return false
	}
	if !n.ready || !known {
		interval = retryInterval
	}
	if n.waits() && n.silent > 0 { // a silent one leaves more of the budget to others
		interval = silentInterval << min(n.silent-1, 1)
	}
	if now.Sub(n.usedAt) < interval || !m.devices[int(n.key.dev)].up {
		return false
	}
	if n.waits() && !known {
		c := m.budgetOf(n.first).take(groupOf(n.key), n.silent > 0, now)
		if c == nil {
			return false
		}
		n.charge = c
	}
	n.usedAt = now
	n.silent++
	if err := m.kernel.use(int(n.key.dev), n.key.addr.Netip()); err != nil {
		n.silent--
		n.charge.end()
		m.refused(n, err)
	}
	return true
}

// useAgain is use without the interval, for a neighbour that the kernel has just removed or marked
// as failed.
func (m *Mirror) useAgain(n *neighbour) {
	n.usedAt = time.Time{}
	m.use(n)
}

// verifyUsed verifies the neighbours that packets are sent to, least recently verified first, and
// returns how many. The kernel does not see these packets, and would not verify a MAC address for
// up to 45 s after confirming it. If a neighbour changed its MAC address without an announcement,
// all packets to it would be lost until then.
func (m *Mirror) verifyUsed() int {
	now := m.now()
	var due []*neighbour
	for _, n := range m.tracked {
		if m.takeUsed(n) {
			n.sentAt = now
		}
		if n.ready && now.Sub(n.sentAt) < m.verifyEvery && now.Sub(n.verifiedAt) >= m.verifyEvery &&
			m.devices[int(n.key.dev)].up {
			if entry, _ := m.known.get(n.key); !entry.fixed {
				due = append(due, n)
			}
		}
	}
	if len(due) > usesPerTick {
		slices.SortFunc(due, func(a, b *neighbour) int { return a.verifiedAt.Compare(b.verifiedAt) })
		due = due[:usesPerTick]
	}
	for _, n := range due {
		n.verifiedAt, n.usedAt = now, now
		if err := m.kernel.verify(int(n.key.dev), n.key.addr.Netip()); err != nil {
			m.refused(n, err)
		}
	}
	return len(due)
}

// takeUsed reports whether workers have sent to n since the last call.
func (m *Mirror) takeUsed(n *neighbour) (used bool) {
	for _, key := range n.hops {
		if e := m.ids.byKey[key]; e != nil {
			if h := m.table.Hop(e.id); h != nil && h.TakeUsed() {
				used = true
			}
		}
	}
	return used
}

// keepFresh runs once a second. It verifies the neighbours that packets are sent to, calls use for
// neighbours whose interval is over, and forgets neighbours that do not answer and are no longer
// requested.
func (m *Mirror) keepFresh() {
	now, uses, expired := m.now(), m.verifyUsed(), false
	for _, n := range m.tracked {
		idle := now.Sub(n.requestedAt)
		if !n.ready && !n.gateway {
			if idle >= m.forgetAfter {
				expired = expired || n.hosted
				m.forget(n)
				continue
			}
			if idle >= m.probeInterval || n.waits() && !n.first {
				continue // no worker sends to it, or workers repeat their requests
			}
		}
		if uses < usesPerTick && m.use(n) {
			uses++
		}
	}
	if expired {
		m.publish()
	}
}

// forgetHosts removes all host routes when hop IDs run out. Workers then request destinations in
// use again. It must not run again before HopGrace has passed, because no ID is freed sooner.
func (m *Mirror) forgetHosts() {
	now := m.now()
	if now.Sub(m.forgotAt) < 2*m.ids.grace {
		return
	}
	m.forgotAt = now
	m.log.Warn("next hops exhausted: all destinations on links are resolved again", "limit", nexthop.MaxHops-1)
	for _, n := range m.tracked {
		if !n.gateway {
			m.forget(n)
		}
	}
	m.publish()
}
