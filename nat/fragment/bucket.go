package fragment

import "sync/atomic"

// bucket is a version word and the entries behind it.
type bucket [bucketWords]atomic.Uint64

// entry is one context: key, value, born.
type entry [entryWords]atomic.Uint64

// entry returns the bucket's entry i.
func (b *bucket) entry(i int) *entry {
	return (*entry)(b[1+i*entryWords:])
}

// lock makes the version odd. It returns the version to unlock with, or not ok if
// other writers kept the bucket busy.
func (b *bucket) lock() (version uint64, ok bool) {
	for range writerTries {
		// Pairs with the store in unlock: what the last writer wrote is seen.
		version = b[0].Load()
		if version&versionBusy == 0 && b[0].CompareAndSwap(version, version|versionBusy) {
			return version, true
		}
	}
	return 0, false
}

// unlock publishes what was written since lock, under a new version. It pairs with
// the loads in lock and in Table.Lookup.
func (b *bucket) unlock(version uint64) { b[0].Store(version + 2*versionBusy) }

// find returns the value of a living context, and whether it is poisoned.
func (b *bucket) find(now, key uint64) (value uint64, poisoned, ok bool) {
	for i := range entriesPer {
		e := b.entry(i)
		if born := e[entryBorn].Load(); e[entryKey].Load() == key && born != 0 && age(now, born) < uint64(Life) {
			return e[entryValue].Load(), born&bornPoisoned != 0, true
		}
	}
	return 0, false, false
}

// slotFor returns the entry of a datagram or, if there is none, the one to give up for it: one
// that is empty or whose life is over; else, of the source that would have most entries, the
// oldest; else the oldest of all.
func (b *bucket) slotFor(now uint64, d *Datagram) *entry {
	var victim *entry
	most, oldest := 0, uint64(0)
	for i := range entriesPer {
		e := b.entry(i)
		born := e[entryBorn].Load()
		if e[entryKey].Load() == d.Key && born != 0 {
			return e
		}
		n, at := entriesPer+1, born&bornTime // as if all were its
		if born != 0 && age(now, born) < uint64(Life) {
			n = b.ofSource(now, sourceOf(born), d)
		}
		if n > most || n == most && at < oldest {
			victim, most, oldest = e, n, at
		}
	}
	return victim
}

// ofSource returns how many living entries a source would have with d.
func (b *bucket) ofSource(now uint64, source uint16, d *Datagram) (n int) {
	if source == d.Source {
		n = 1
	}
	for i := range entriesPer {
		born := b.entry(i)[entryBorn].Load()
		if born != 0 && age(now, born) < uint64(Life) && sourceOf(born) == source {
			n++
		}
	}
	return n
}

func sourceOf(born uint64) uint16 { return uint16(born) >> 1 }
