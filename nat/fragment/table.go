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

	bucketWords = 16
	entriesPer  = 5
	entryWords  = 3
	minBuckets  = 16
	writerTries = 256
	readerTries = 16
	versionBusy = 1
)

// An entry is empty if its born word is zero.
//
//	value  63        48 47             32 31             0
//	       [ source port | destination port | identification ]
//	born   63                     16 15     1      0
//	       [ time, units of 65,536 ns | source | poisoned ]
const (
	entryKey = iota
	entryValue
	entryBorn

	bornPoisoned  = 1
	bornSourceMax = 1<<15 - 1
	bornTime      = ^uint64(1<<16 - 1)
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
	mem      []atomic.Uint64
	mask     uint64 // of buckets
	secret   [2]uint64
	nextID4  atomic.Uint32
	nextID6  atomic.Uint32
	recorded atomic.Uint64
}

// Datagram is what a fragment says of its datagram: what it is known by, and who sent it.
type Datagram struct {
	Key    uint64
	Source uint16 // a hash of the network that it comes from, 15 bits: the sources that share the table
	V6     bool
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

// Datagram returns what a fragment says of its datagram.
func (t *Table) Datagram(p *header.Packet) Datagram {
	return Datagram{
		Key: datagramKey(t.secret, p), Source: uint16(sourcePrefix(t.secret, p) & bornSourceMax), V6: p.Tuple.V6,
	}
}

// Record remembers the ports that a datagram's first fragment carries and returns
// the datagram's new identification, 16 bits over IPv4. A duplicate gets the one the original got.
// Status is Known, Overlap or Full. now is in nanoseconds of a clock that all
// callers share.
func (t *Table) Record(now uint64, d Datagram, src, dst uint16) (id uint32, s Status) {
	b := t.bucket(d.Key)
	version, ok := b.lock()
	if !ok {
		return 0, Full
	}
	e := b.slotFor(now, &d)
	value, born := e[entryValue].Load(), e[entryBorn].Load()
	switch {
	case e[entryKey].Load() != d.Key || born == 0 || age(now, born) >= uint64(reuseAge):
		id, s = t.newID(d.V6), Known
		e[entryKey].Store(d.Key)
		e[entryValue].Store(pack(src, dst, id))
		e[entryBorn].Store(max(now, ^bornTime+1)&bornTime | uint64(d.Source)<<1)
	case born&bornPoisoned != 0 || value>>32 != pack(src, dst, 0)>>32:
		s = Overlap
		e[entryBorn].Store(born | bornPoisoned)
	default:
		_, _, id = unpack(value)
		s = Known
	}
	b.unlock(version)
	t.recorded.Add(1) // what a Lookup finds from now on; pairs with the load in Recorded
	return id, s
}

// Recorded returns a number that has changed if a Record has ended since.
func (t *Table) Recorded() uint64 { return t.recorded.Load() }

// Lookup returns what a datagram's first fragment said, and its new
// identification. Status is Known, Unknown or Overlap.
func (t *Table) Lookup(now, key uint64) (src, dst uint16, id uint32, s Status) {
	b := t.bucket(key)
	for range readerTries {
		version := b[0].Load()
		if version&versionBusy != 0 {
			continue
		}
		value, poisoned, found := b.find(now, key)
		if b[0].Load() != version {
			continue
		}
		switch {
		case !found:
			return 0, 0, 0, Unknown
		case poisoned:
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

// NewID returns IPv4 identifications that do not repeat within 65,536 datagrams and
// cannot be predicted (RFC 7739): a secret permutation of a counter.
func (t *Table) NewID() uint16 {
	return permute(t.secret, uint16(t.nextID4.Add(1)))
}

// newID returns an identification; over IPv6 it does not repeat within 2^32 datagrams.
func (t *Table) newID(v6 bool) uint32 {
	if v6 {
		return permute32(t.secret, t.nextID6.Add(1))
	}
	return uint32(t.NewID())
}

// age is how long ago the time of a born word was, at most 66 us too long; a clock that runs
// backwards makes nothing older.
func age(now, born uint64) uint64 {
	born &= bornTime
	if born >= now {
		return 0
	}
	return now - born
}

func pack(src, dst uint16, id uint32) uint64 {
	return uint64(src)<<48 | uint64(dst)<<32 | uint64(id)
}

func unpack(v uint64) (src, dst uint16, id uint32) {
	return uint16(v >> 48), uint16(v >> 32), uint32(v)
}
