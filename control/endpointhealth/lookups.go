package endpointhealth

import (
	"net/netip"
	"slices"
	"time"
)

// lookup is an address on a link that the kernel resolves because of a check. Until it has ended,
// the kernel cannot remove the neighbour entry, and a full table leaves the whole node without new
// neighbours. So Config.MostUnresolved bounds the lookups, with a share for each usage.
type lookup struct {
	addr      netip.Addr
	of        *usage
	at, until time.Time
}

const (
	// lookupTime is how long the kernel tries to resolve an address that does not answer: 3 s
	// (mcast_solicit times retrans_time_ms), and its timers are late.
	lookupTime = 3500 * time.Millisecond
	// sharedFor is how long other checks of an address need no lookup of their own: a failed node
	// may have many endpoints. It is shorter than the kernel's attempts, so that every address has
	// its turn.
	sharedFor = 3 * time.Second
)

func (t *Tracker) unresolved(e *endpoint) bool {
	return t.cfg.Unresolved != nil && t.cfg.Unresolved(e.target.Addr())
}

// lookUp reports whether a check may begin although the kernel may have to resolve its address, and
// counts the lookup.
func (t *Tracker) lookUp(u *usage, e *endpoint, now time.Time) bool {
	if !t.unresolved(e) {
		return true
	}
	until := now.Add(e.check.Timeout + lookupTime) // a check sends until its timeout
	for i := range t.lookups {
		if k := &t.lookups[i]; k.addr == e.target.Addr() && now.Sub(k.at) < sharedFor {
			if until.After(k.until) {
				k.until = until
			}
			return true
		}
	}
	if !t.allows(u.lookups, len(t.lookups), t.cfg.MostUnresolved) {
		return false
	}
	t.lookups = append(t.lookups, lookup{e.target.Addr(), u, now, until})
	u.lookups++
	return true
}

// endLookups removes the lookups whose address is resolved or whose time is over.
func (t *Tracker) endLookups(now time.Time) {
	t.lookups = slices.DeleteFunc(t.lookups, func(k lookup) bool {
		if now.Before(k.until) && t.cfg.Unresolved(k.addr) {
			return false
		}
		k.of.lookups--
		return true
	})
}
