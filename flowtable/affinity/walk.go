package affinity

import (
	"math/bits"
	"time"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// Entry is a pin for display.
type Entry struct {
	Client  header.Addr
	Service uint64 // services.Service.Identity
	Pin     Pin
	Left    time.Duration // until it ends, to a tenth of a second
	// Tentative: no flow of the client has reached an assured state since the pin was made.
	Tentative bool
}

// Each calls f for each pin that has not ended, until f returns false. It may miss pins that are
// set or moved meanwhile. It blocks no writer.
func (t *Table) Each(now flowtable.Time, f func(*Entry) bool) {
	var found [setSlots]entry
	for i := range t.sets {
		for _, e := range found[:t.sets[i].snapshot(&found)] {
			if left := e.until().since(ticksAt(now)); left >= 0 && !f(e.entry(left)) {
				return
			}
		}
	}
}

func (e *entry) entry(left int32) *Entry {
	client := addrOf([2]uint64{e.key[0], e.key[1]})
	return &Entry{
		Client: client, Service: e.key[2], Pin: e.pin(), Left: time.Duration(left) * tick, Tentative: e.tentative(),
	}
}

// snapshot copies the pins that a set held at one moment, and returns their number.
func (s *set) snapshot(out *[setSlots]entry) (n int) {
	for {
		c := s.ctl.Load()
		n = 0
		for m := c & slotMask; m != 0; m &= m - 1 {
			out[n] = s.slots[bits.TrailingZeros64(m)].load()
			n++
		}
		if s.ctl.Load() == c {
			return n
		}
	}
}

// Forget ends the pins that match selects by service (services.Service.Identity) and backend, and
// returns how many. It calls match for each pin that exists during the whole call, for some pins
// perhaps more than once. Call it for endpoints that leave their service: if they come back, they
// do not get their clients back. Workers with an earlier snapshot may still pin clients to these
// endpoints: wait until no worker uses one.
func (t *Table) Forget(now flowtable.Time, match func(service uint64, pin Pin) bool) (ended int) {
	for i := range t.sets {
		ended += t.sets[i].forget(ticksAt(now), match)
	}
	return ended
}

func (s *set) forget(now ticks, match func(uint64, Pin) bool) (ended int) {
	for {
		c := s.ctl.Load()
		at := s.search(c, now, match)
		if at < 0 && s.ctl.Load() == c {
			return ended
		}
		if at >= 0 && s.drop(c, at) {
			ended++
		}
	}
}

// search returns a valid slot of ctl value c that match selects, or -1. The result holds only if
// ctl still is c afterwards.
func (s *set) search(c uint64, now ticks, match func(uint64, Pin) bool) (at int) {
	for m := c & slotMask; m != 0; m &= m - 1 {
		at := bits.TrailingZeros64(m)
		l := &s.slots[at]
		e := entry{backend: [2]uint64{l.backend[0].Load(), l.backend[1].Load()}, end: l.end.Load()}
		if service := l.key[2].Load(); e.alive(now) && s.ctl.Load() == c && match(service, e.pin()) {
			return at
		}
	}
	return -1
}

// Counts are the table's counters.
type Counts struct {
	Capacity  int    // as configured
	Live      int    // confirmed pins that have not ended, counted by a walk of the table
	Tentative int    // tentative pins, counted likewise
	Evicted   uint64 // confirmed pins that were evicted early, since the process began
	Lost      uint64 // pins that could not be stored: too many at once in one set
}

// Counts returns the counters. Each is exact for some moment during the call.
func (t *Table) Counts(now flowtable.Time) Counts {
	c := Counts{Capacity: t.clients, Evicted: t.evicted.Load(), Lost: t.lost.Load()}
	for i := range t.sets {
		s := &t.sets[i]
		for m := s.ctl.Load() & slotMask; m != 0; m &= m - 1 {
			e := entry{end: s.slots[bits.TrailingZeros64(m)].end.Load()}
			switch {
			case !e.alive(ticksAt(now)):
			case e.tentative():
				c.Tentative++
			default:
				c.Live++
			}
		}
	}
	return c
}
