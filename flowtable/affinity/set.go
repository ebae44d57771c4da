package affinity

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

const (
	setSlots = 10
	tagBits  = 16
	tagsPer  = 64 / tagBits

	slotMask   = 1<<setSlots - 1
	claimShift = setSlots
	versionOne = 1 << (2 * setSlots)
)

// set is a bucket of pins: eight cache lines.
//
//	ctl   63           20 19      10 9        0
//	      [   version   ][ claimed ][  valid   ]
//
// Invariants:
//
//	S1  A slot is valid (it holds a pin), claimed (a writer fills it), or free: never both bits.
//	S2  Only the writer that set a claimed bit writes the slot and its tag, and clears the bit.
//	    Only the end of a valid slot may be changed by any writer, by compare-and-swap.
//	S3  Every change of ctl adds one to the version.
//	S4  At most one valid slot has a given key.
//
// Read: load ctl, load the valid slots, load ctl again. If it is the same, no slot was claimed in
// between (S3), and so the values read are consistent (S2).
//
// Commit: the same read, for the key's own pin, then one compare-and-swap of ctl that turns claimed
// into valid and the key's older pin into free. It succeeds only if ctl has not changed since
// before the read: so S4 holds, and a writer that commits a pin sees every pin committed before.
// The swap publishes the slot's words; every load of ctl pairs with it. A changed ctl could look
// the same only if 2^44 changes during one read made the version wrap around.
type set struct {
	ctl   atomic.Uint64
	tags  [3]atomic.Uint64 // tagsPer to a word, lowest slot lowest
	slots [setSlots]slot
}

// slot is one pin. The words of the key and of the backend are final while it is valid.
type slot struct {
	key     [3]atomic.Uint64 // client address, service
	backend [2]atomic.Uint64 // address
	end     atomic.Uint64    // packEnd, and the number of writes of the slot
}

const (
	_ = -(unsafe.Sizeof(set{}) ^ 512)
	_ = uint(len(set{}.tags)*tagsPer - setSlots)
)

// entry is a copy of a slot's words.
type entry struct {
	key     [3]uint64
	backend [2]uint64
	end     uint64
}

// The end word of a slot: the end of the pin, the backend's port, whether the pin is tentative, and
// the number of writes of the slot:
//
//	63        32 31      16  15  14       0
//	[ until, ticks ][ port ][tnt][ written ]
const (
	endTentative = 1 << 15
	endWritten   = 1<<15 - 1
)

func packEnd(until ticks, port uint16, tentative bool) uint64 {
	end := uint64(until)<<32 | uint64(port)<<16
	if tentative {
		end |= endTentative
	}
	return end
}

func (e *entry) until() ticks    { return ticks(e.end >> 32) }
func (e *entry) port() uint16    { return uint16(e.end >> 16) }
func (e *entry) tentative() bool { return e.end&endTentative != 0 }

func (e *entry) pins(backend [2]uint64, port uint16) bool {
	return e.backend == backend && e.port() == port
}

func (s *slot) load() (e entry) {
	for i := range e.key {
		e.key[i] = s.key[i].Load()
	}
	for i := range e.backend {
		e.backend[i] = s.backend[i].Load()
	}
	e.end = s.end.Load()
	return e
}

// read returns the key's slot, or -1, and the ctl value for which this result holds.
func (s *set) read(tag uint16, key *[3]uint64, e *entry) (c uint64, at int) {
	for {
		c = s.ctl.Load()
		if at = s.find(c, tag, key, e); s.ctl.Load() == c {
			return c, at // otherwise another writer's change of the set succeeded
		}
	}
}

// find searches the valid slots of ctl value c for the key. The result, even -1, holds only if ctl
// still is c afterwards.
func (s *set) find(c uint64, tag uint16, key *[3]uint64, e *entry) (at int) {
	for m := c & slotMask; m != 0; m &= m - 1 {
		i := bits.TrailingZeros64(m)
		if s.tag(i) != tag {
			continue
		}
		if *e = s.slots[i].load(); e.key == *key {
			return i
		}
	}
	return -1
}

func (s *set) tag(i int) uint16 {
	return uint16(s.tags[i/tagsPer].Load() >> (i % tagsPer * tagBits))
}

// claim claims a slot to write a pin in: a free slot, or else the slot that victim returns.
// evicted: the slot had a confirmed pin with some time left. at is -1 if no slot may be taken. ok
// is false if ctl is no longer c.
func (s *set) claim(c uint64, own int, now ticks, yields bool) (at int, evicted, ok bool) {
	free := ^(c | c>>claimShift) & slotMask
	if free == 0 {
		if at, evicted = s.victim(c, own, now, yields); at < 0 {
			return -1, false, false
		}
	} else {
		at = bits.TrailingZeros64(free)
	}
	next := c&^(1<<at) | 1<<(at+claimShift)
	return at, evicted, s.ctl.CompareAndSwap(c, next+versionOne)
}

// victim returns the valid slot whose pin is evicted for another key: a pin that has ended, else a
// tentative one, else a confirmed one, unless yields is set. Among equals it returns the pin that
// ends first. own is the slot of the writer's key. Its pin remains until the new one replaces it,
// so own is evicted only if yields is set and there is no other slot.
func (s *set) victim(c uint64, own int, now ticks, yields bool) (at int, evicted bool) {
	const ended, unconfirmed, confirmed, last, none = 0, 1, 2, 3, 4
	at = -1
	best, first := none, int32(0)
	for m := c & slotMask; m != 0; m &= m - 1 {
		i := bits.TrailingZeros64(m)
		e := entry{end: s.slots[i].end.Load()}
		rank, left := confirmed, e.until().since(now)
		switch {
		case i == own && yields:
			rank = last
		case i == own:
			rank = none
		case left < 0:
			rank = ended
		case e.tentative():
			rank = unconfirmed
		case yields:
			rank = none
		}
		if rank < best || rank == best && rank != none && left < first {
			at, best, first = i, rank, left
		}
	}
	return at, best == confirmed
}

// write fills a claimed slot. It increments the count in the end word, so that the swap of a writer
// that has read the former end (renew) fails.
func (s *set) write(at int, tag uint16, e *entry) {
	w, shift := &s.tags[at/tagsPer], at%tagsPer*tagBits
	w.And(^(uint64(1<<tagBits-1) << shift))
	w.Or(uint64(tag) << shift)
	l := &s.slots[at]
	for i := range e.key {
		l.key[i].Store(e.key[i])
	}
	for i := range e.backend {
		l.backend[i].Store(e.backend[i])
	}
	l.end.Store(e.end | (l.end.Load()+1)&endWritten)
}

// commit makes a claimed slot the key's pin, in place of slot old (-1: no old slot).
func (s *set) commit(c uint64, claimed, old int) bool {
	next := c&^(1<<(claimed+claimShift)) | 1<<claimed
	if old >= 0 {
		next &^= 1 << old
	}
	return s.ctl.CompareAndSwap(c, next+versionOne)
}

// release frees a claimed slot.
func (s *set) release(claimed int) {
	for {
		c := s.ctl.Load()
		if s.ctl.CompareAndSwap(c, c&^(1<<(claimed+claimShift))+versionOne) {
			return
		}
	}
}

// drop frees a valid slot, if ctl still is c.
func (s *set) drop(c uint64, at int) bool {
	return s.ctl.CompareAndSwap(c, c&^(1<<at)+versionOne)
}
