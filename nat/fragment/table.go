package fragment

import (
	"fmt"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/nat/header"
)

const (
	// Life is how long an incomplete context lives after the last fragment of its datagram. A
	// receiver may wait for 60 s (RFC 1122 section 3.3.2, RFC 8200 section 4.5), because it has the
	// data. A context is only a guess about future packets, and a fast sender uses all
	// identifications in less time (RFC 4963 section 2): then a later fragment that arrives first
	// would get an older datagram's ports. Reordering within a datagram takes milliseconds.
	Life = 2 * time.Second
	// reuseAge is the age of an incomplete context from which a first fragment is no duplicate or
	// overlap but starts a new datagram: the old one has lost a fragment. Overlapping fragments
	// that far apart get different new identifications, so an IPv4 receiver does not combine them.
	reuseAge = time.Second
	// duplicateAge is how long after its completion a fragment that fits into a datagram counts as
	// a duplicate. Duplicates follow their original within milliseconds. The first later fragment
	// of a new datagram with the same identification looks the same, so the time must be short: at
	// 1,000 datagrams a second from one address, one in 13,000 has the identification of a datagram
	// that became complete less than 5 ms before.
	duplicateAge = 5 * time.Millisecond

	bucketWords = 32
	entriesPer  = 5
	entryWords  = entryCover + coverWords
	minBuckets  = 16
	writerTries = 256
	readerTries = 16
	versionBusy = 1
)

// An entry is empty if its seen word is zero.
//
//	value   63        48 47             32 31             0
//	        [ source port | destination port | identification ]
//	seen    63                     16 15     1      0
//	        [ time, units of 65,536 ns | source | poisoned ]
//	cover   three words, see coverage
const (
	entryKey = iota
	entryValue
	entrySeen
	entryCover

	seenPoisoned  = 1
	seenSourceMax = 1<<15 - 1
	seenTime      = ^uint64(1<<16 - 1)
)

// Status is the state of a datagram in the table.
type Status uint8

const (
	Unknown Status = iota // no first fragment yet, or too long ago, or all fragments have arrived
	Known
	Overlap // fragments disagree about their datagram's bytes or ports
	Full    // the context could not be recorded
	Busy    // other workers kept the bucket busy: ask again
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

// Datagram is the information that a fragment has about its datagram: the key, the sender's
// network, and the part that the fragment carries.
type Datagram struct {
	Key    uint64
	Source uint16 // a hash of the sender's network, 15 bits, for fair sharing of the table
	V6     bool
	Proto  uint8 // of the transport; of a later IPv6 fragment, the next header of its fragment header
	// From and To are the fragment's start and end in the datagram, in units of 8 bytes (RFC 791
	// section 3.2). To is exclusive; for the last fragment it is rounded up.
	From, To uint16
	Last     bool // it is the last fragment of the datagram
}

// First has the ports and protocol of a datagram's first fragment, and the datagram's new
// identification.
type First struct {
	Src, Dst uint16 // ports
	ID       uint32 // 16 bits over IPv4
	Proto    uint8
}

// Words returns the number of words of memory that a table of at least contexts contexts needs.
func Words(contexts int) int {
	buckets := minBuckets
	for buckets*entriesPer < contexts {
		buckets *= 2
	}
	return buckets * bucketWords
}

// New returns an empty table in mem, which must be zero and have the length that Words returns.
// secret must be random, so that attackers cannot build keys that collide or guess identifications.
func New(mem []atomic.Uint64, secret [2]uint64) (*Table, error) {
	buckets := len(mem) / bucketWords
	if len(mem)%bucketWords != 0 || buckets < minBuckets || buckets&(buckets-1) != 0 {
		return nil, fmt.Errorf("fragment table of %d words: want what Words returns", len(mem))
	}
	return &Table{mem: mem, mask: uint64(buckets - 1), secret: secret}, nil
}

// Datagram returns a fragment's Datagram. The frame must contain all of the packet's IP headers.
func (t *Table) Datagram(frame []byte, p *header.Packet) Datagram {
	const unit = 8
	return Datagram{
		Key: datagramKey(t.secret, p), Source: uint16(sourcePrefix(t.secret, p) & seenSourceMax), V6: p.Tuple.V6,
		Proto: p.Tuple.Proto, From: p.FragmentOffset / unit,
		To:   uint16((uint32(p.FragmentOffset) + uint32(p.FragmentBytes()) + unit - 1) / unit),
		Last: !p.MoreFragments(frame),
	}
}

// Record stores the ports of a datagram's first fragment and returns the datagram's new
// identification, 16 bits over IPv4. A duplicate gets the identification of the original. Status is
// Known, Overlap or Full. now is in nanoseconds of a clock that all callers share.
func (t *Table) Record(now uint64, d Datagram, src, dst uint16) (id uint32, s Status) {
	b := t.bucket(d.Key)
	version, ok := b.lock()
	if !ok {
		return 0, Full
	}
	e := b.slotFor(now, &d, t)
	value, seen, c := e[entryValue].Load(), e[entrySeen].Load(), e.coverage()
	here := e[entryKey].Load() == d.Key && seen != 0
	same := value>>32 == pack(src, dst, 0)>>32
	s = Known
	switch _, _, id = unpack(value); {
	case here && same && t.complete(e) && age(now, seen) < uint64(duplicateAge):
		// A duplicate, or the next datagram of a sender that uses one identification for all.
		c = t.cover(&d)
		c.again = true
		e.begin(now, &d, value, &c)
	case !here || t.complete(e) || age(now, seen) >= uint64(reuseAge) || e.over(now):
		id, c = t.newID(d.V6), t.cover(&d)
		e.begin(now, &d, pack(src, dst, id), &c)
	case seen&seenPoisoned != 0 || !same || d.To > c.first:
		id, s = 0, Overlap
		e[entrySeen].Store(seen | seenPoisoned)
	}
	b.unlock(version)
	t.recorded.Add(1) // Later finds the context from now on; pairs with the load in Recorded
	return id, s
}

// Recorded returns a number that changes whenever a Record has ended.
func (t *Table) Recorded() uint64 { return t.recorded.Load() }

// Later returns the First of a later fragment's datagram, and adds the fragment to the datagram's
// coverage: the context ends when all bytes of the datagram have arrived. Status is Known, Unknown,
// Overlap or Busy. A duplicate is Known.
func (t *Table) Later(now uint64, d Datagram) (f First, s Status) {
	if f, s = t.lookup(now, d.Key); s != Known { // mostly fragments that the caller holds; they need no lock
		return f, s
	}
	b := t.bucket(d.Key)
	version, ok := b.lock()
	if !ok {
		return First{}, Busy
	}
	f, s = t.count(b, now, &d)
	b.unlock(version)
	return f, s
}

// count is Later in a locked bucket.
func (t *Table) count(b *bucket, now uint64, d *Datagram) (f First, s Status) {
	e := b.find(now, d.Key)
	if e == nil {
		return First{}, Unknown
	}
	seen := e[entrySeen].Load()
	if seen&seenPoisoned != 0 {
		return First{}, Overlap
	}
	c := e.coverage()
	if t.complete(e) {
		if age(now, seen) >= uint64(duplicateAge) || !c.fits(d) {
			return First{}, Unknown
		}
		return e.firstFragment(), Known
	}
	switch t.add(&c, d) {
	case overlaps:
		e[entrySeen].Store(seen | seenPoisoned)
		return First{}, Overlap
	case added:
		e.setCoverage(&c)
		e[entrySeen].Store(seenAt(now) | seen&^seenTime)
	}
	return e.firstFragment(), Known
}

// lookup returns the result of Later without changing the coverage.
func (t *Table) lookup(now, key uint64) (f First, s Status) {
	b := t.bucket(key)
	for range readerTries {
		version := b[0].Load()
		if version&versionBusy != 0 {
			continue
		}
		f, s = First{}, Unknown
		if e := b.find(now, key); e != nil {
			seen := e[entrySeen].Load()
			switch {
			case seen&seenPoisoned != 0:
				s = Overlap
			case !t.complete(e) || age(now, seen) < uint64(duplicateAge):
				f, s = e.firstFragment(), Known
			}
		}
		if b[0].Load() == version {
			return f, s
		}
	}
	return First{}, Busy
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

// seenAt returns the time field of a seen word; it is never zero.
func seenAt(now uint64) uint64 { return max(now, ^seenTime+1) & seenTime }

// age returns the time since that of a seen word, in nanoseconds, at most 66 us too long. If the
// clock runs backwards, it returns 0.
func age(now, seen uint64) uint64 {
	seen &= seenTime
	if seen >= now {
		return 0
	}
	return now - seen
}

func pack(src, dst uint16, id uint32) uint64 {
	return uint64(src)<<48 | uint64(dst)<<32 | uint64(id)
}

func unpack(v uint64) (src, dst uint16, id uint32) {
	return uint16(v >> 48), uint16(v >> 32), uint32(v)
}
