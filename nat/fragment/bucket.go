package fragment

import "sync/atomic"

// bucket is a version word and the entries behind it.
type bucket [bucketWords]atomic.Uint64

// entry is one context: key, value, seen, cover.
type entry [entryWords]atomic.Uint64

// entry returns the bucket's entry i.
func (b *bucket) entry(i int) *entry {
	return (*entry)(b[1+i*entryWords:])
}

// lock makes the version odd. It returns the version to pass to unlock. ok is false if other
// writers kept the bucket busy.
func (b *bucket) lock() (version uint64, ok bool) {
	for range writerTries {
		// Pairs with the store in unlock: the last writer's stores are visible.
		version = b[0].Load()
		if version&versionBusy == 0 && b[0].CompareAndSwap(version, version|versionBusy) {
			return version, true
		}
	}
	return 0, false
}

// unlock publishes the stores since lock, under a new version. It pairs with the loads in lock and
// in Table.lookup.
func (b *bucket) unlock(version uint64) { b[0].Store(version + 2*versionBusy) }

// find returns a datagram's entry, or nil if there is none or it has ended.
func (b *bucket) find(now, key uint64) *entry {
	for i := range entriesPer {
		e := b.entry(i)
		if e[entryKey].Load() == key && !e.over(now) {
			return e
		}
	}
	return nil
}

// slotFor returns the entry of a datagram or, if there is none, the entry to evict: an entry that
// is empty or has ended; else the oldest entry of the source that would have most incomplete
// entries; else the oldest of all.
func (b *bucket) slotFor(now uint64, d *Datagram, t *Table) *entry {
	var victim *entry
	most, oldest := 0, uint64(0)
	for i := range entriesPer {
		e := b.entry(i)
		seen := e[entrySeen].Load()
		if e[entryKey].Load() == d.Key && seen != 0 {
			return e
		}
		n, at := entriesPer+1, seen&seenTime // ended: evicted before any other
		if e.waits(now, t) {
			n = b.ofSource(now, sourceOf(seen), d, t)
		}
		if n > most || n == most && at < oldest {
			victim, most, oldest = e, n, at
		}
	}
	return victim
}

// ofSource returns how many incomplete entries a source would have including d.
func (b *bucket) ofSource(now uint64, source uint16, d *Datagram, t *Table) (n int) {
	if source == d.Source {
		n = 1
	}
	for i := range entriesPer {
		if e := b.entry(i); e.waits(now, t) && sourceOf(e[entrySeen].Load()) == source {
			n++
		}
	}
	return n
}

// over reports whether an entry is empty or has ended.
func (e *entry) over(now uint64) bool {
	seen := e[entrySeen].Load()
	idle := age(now, seen)
	again := e[entryCover+1].Load()&coverAgain != 0
	return seen == 0 || idle >= uint64(Life) || again && idle >= uint64(duplicateAge)
}

// waits reports whether fragments of an entry's datagram may still arrive.
func (e *entry) waits(now uint64, t *Table) bool { return !e.over(now) && !t.complete(e) }

// begin assigns the entry to a new datagram. The bucket must be locked.
func (e *entry) begin(now uint64, d *Datagram, value uint64, c *coverage) {
	e[entryKey].Store(d.Key)
	e[entryValue].Store(value)
	e[entrySeen].Store(seenAt(now) | uint64(d.Source)<<1)
	e.setCoverage(c)
}

func (e *entry) firstFragment() (f First) {
	f.Src, f.Dst, f.ID = unpack(e[entryValue].Load())
	f.Proto = uint8(e[entryCover].Load())
	return f
}

func sourceOf(seen uint64) uint16 { return uint16(seen) >> 1 }
