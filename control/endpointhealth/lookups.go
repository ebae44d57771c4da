package endpointhealth

import (
	"net/netip"
	"slices"
	"time"
)

// lookup is an address on a link that a check makes the kernel ask for. Meanwhile the kernel cannot
// remove the neighbour entry, and a full table leaves the whole node without new neighbours. So
// Config.MostUnresolved bounds the addresses, with a share for a usage as for checks under way.
type lookup struct {
	addr      netip.Addr
	of        *usage
	at, until time.Time
}

const (
	// askedFor is how long the kernel asks for an address that does not answer: 3 s (mcast_solicit
	// times retrans_time_ms), and its timers are late.
	askedFor = 3500 * time.Millisecond
	// sharedFor is how long other checks of an address need no lookup of their own: a node that has
	// failed has many endpoints. It ends before the kernel's attempts do, so that every address has
	// its turn.
	sharedFor = 3 * time.Second
)

func (t *Tracker) unresolved(e *endpoint) bool {
	return t.cfg.Unresolved != nil && t.cfg.Unresolved(e.target.Addr())
}

// lookUp reports whether a check may make the kernel ask for its address now, if the kernel must,
// and counts that.
func (t *Tracker) lookUp(u *usage, e *endpoint, now time.Time) bool {
	if !t.unresolved(e) {
		return true
	}
	until := now.Add(e.check.Timeout + askedFor) // a check sends until its timeout
	for i := range t.lookups {
		if k := &t.lookups[i]; k.addr == e.target.Addr() && now.Sub(k.at) < sharedFor {
			if until.After(k.until) {
				k.until = until
			}
			return true
		}
	}
	share := max(int(t.share(int64(t.cfg.MostUnresolved))), 1)
	if u.lookups >= min(share, t.cfg.MostUnresolved-len(t.lookups)) {
		return false
	}
	t.lookups = append(t.lookups, lookup{e.target.Addr(), u, now, until})
	u.lookups++
	return true
}

// endLookups ends the lookups that are answered, or that the kernel has given up.
func (t *Tracker) endLookups(now time.Time) {
	t.lookups = slices.DeleteFunc(t.lookups, func(k lookup) bool {
		if now.Before(k.until) && t.cfg.Unresolved(k.addr) {
			return false
		}
		k.of.lookups--
		return true
	})
}
