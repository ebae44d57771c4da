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

// find returns the value of a living context.
func (b *bucket) find(now, key uint64) (value uint64, ok bool) {
	for i := range entriesPer {
		e := b.entry(i)
		if born := e[entryBorn].Load(); e[entryKey].Load() == key && born != 0 && age(now, born) < uint64(Life) {
			return e[entryValue].Load(), true
		}
	}
	return 0, false
}

// slotFor returns the entry of key or, if there is none, the one to give up for it:
// the oldest, an empty one being older than all.
func (b *bucket) slotFor(key uint64) *entry {
	oldest := b.entry(0)
	for i := range entriesPer {
		e := b.entry(i)
		if e[entryKey].Load() == key && e[entryBorn].Load() != 0 {
			return e
		}
		if e[entryBorn].Load() < oldest[entryBorn].Load() {
			oldest = e
		}
	}
	return oldest
}
