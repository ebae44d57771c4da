package fragment

import (
	"fmt"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/nat/header"
)

const (
	// Life is how long a context lives after its first fragment. A receiver may wait
	// for 60 s (RFC 1122 section 3.3.2, RFC 8200 section 4.5): it has the data. A
	// context is a guess about packets to come, and a fast sender uses all
	// identifications in less time (RFC 4963 section 2): a later fragment that comes
	// first would go by an older datagram's ports. Reordering within a datagram is a
	// matter of milliseconds.
	Life = 2 * time.Second
	// reuseAge is when a first fragment stops being a duplicate or an overlap of an
	// earlier one and starts a new datagram: 16 bits of identification come round, in
	// a fast sender soon (RFC 4963). Overlapping fragments that far apart get two
	// identifications of ours, so they do not meet at an IPv4 receiver.
	reuseAge = time.Second

	bucketWords  = 16
	entriesPer   = 5
	entryWords   = 3
	minBuckets   = 16
	writerTries  = 256
	readerTries  = 16
	versionBusy  = 1
	flagPoisoned = 1
)

// An entry is empty if its born word is zero.
const (
	entryKey = iota
	entryValue
	entryBorn
)

// Status is the state of a datagram in the table.
type Status uint8

const (
	Unknown Status = iota // no first fragment yet, or too long ago
	Known
	Overlap // two first fragments disagreed
	Full    // the context could not be recorded
)

// Table is shared by all workers. All methods are safe for concurrent use.
type Table struct {
	mem    []atomic.Uint64
	mask   uint64 // of buckets
	secret [2]uint64
	nextID atomic.Uint32
}

// Words is how much memory a table of at least that many contexts needs.
func Words(contexts int) int {
	buckets := minBuckets
	for buckets*entriesPer < contexts {
		buckets *= 2
	}
	return buckets * bucketWords
}

// New returns an empty table in mem, which must be zero and as long as Words said.
// secret must be random: it keeps others from building keys that collide, and
// identifications from being guessed.
func New(mem []atomic.Uint64, secret [2]uint64) (*Table, error) {
	buckets := len(mem) / bucketWords
	if len(mem)%bucketWords != 0 || buckets < minBuckets || buckets&(buckets-1) != 0 {
		return nil, fmt.Errorf("fragment table of %d words: must be a power of two, at least %d (see Words)",
			len(mem), minBuckets*bucketWords)
	}
	return &Table{mem: mem, mask: uint64(buckets - 1), secret: secret}, nil
}

// Contexts is how many datagrams the table can remember.
func (t *Table) Contexts() int { return len(t.mem) / bucketWords * entriesPer }

// Key names a fragment's datagram.
func (t *Table) Key(p *header.Packet) uint64 { return datagramKey(t.secret, p) }

// Record remembers the ports that a datagram's first fragment carries and returns
// the datagram's new identification. A duplicate gets the one the original got.
// Status is Known, Overlap or Full. now is in nanoseconds of a clock that all
// callers share.
func (t *Table) Record(now, key uint64, src, dst uint16) (id uint16, s Status) {
	b := t.bucket(key)
	version, ok := b.lock()
	if !ok {
		return 0, Full
	}
	e := b.slotFor(key)
	value, born := e[entryValue].Load(), e[entryBorn].Load()
	switch {
	case e[entryKey].Load() != key || born == 0 || age(now, born) >= uint64(reuseAge):
		id, s = t.NewID(), Known
		e[entryKey].Store(key)
		e[entryValue].Store(pack(src, dst, id))
		e[entryBorn].Store(max(now, 1))
	case value&flagPoisoned != 0 || value>>32 != pack(src, dst, 0)>>32:
		s = Overlap
		e[entryValue].Store(value | flagPoisoned)
	default:
		_, _, id = unpack(value)
		s = Known
	}
	b.unlock(version)
	return id, s
}

// Lookup returns what a datagram's first fragment said, and its new
// identification. Status is Known, Unknown or Overlap.
func (t *Table) Lookup(now, key uint64) (src, dst, id uint16, s Status) {
	b := t.bucket(key)
	for range readerTries {
		version := b[0].Load()
		if version&versionBusy != 0 {
			continue
		}
		value, found := b.find(now, key)
		if b[0].Load() != version {
			continue
		}
		switch {
		case !found:
			return 0, 0, 0, Unknown
		case value&flagPoisoned != 0:
			return 0, 0, 0, Overlap
		}
		src, dst, id = unpack(value)
		return src, dst, id, Known
	}
	return 0, 0, 0, Unknown
}

func (t *Table) bucket(key uint64) *bucket {
	at := (key & t.mask) * bucketWords
	return (*bucket)(t.mem[at : at+bucketWords])
}

// NewID returns identifications that do not repeat within 65,536 datagrams and
// cannot be predicted (RFC 7739): a secret permutation of a counter.
func (t *Table) NewID() uint16 {
	return permute(t.secret, uint16(t.nextID.Add(1)))
}

// age is how long ago born was; a clock that runs backwards makes nothing older.
func age(now, born uint64) uint64 {
	if born >= now {
		return 0
	}
	return now - born
}

func pack(src, dst, id uint16) uint64 {
	return uint64(src)<<48 | uint64(dst)<<32 | uint64(id)<<16
}

func unpack(v uint64) (src, dst, id uint16) {
	return uint16(v >> 48), uint16(v >> 32), uint16(v >> 16)
}
