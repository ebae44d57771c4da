package fastpath

import (
	"encoding/binary"
	"math/bits"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// hopIndex counts the packets of a hopQueue by destination, so that hold need not search the queue
// for each packet: packets to a few neighbours that do not answer may arrive at a high rate.
//
// It is a hash table with linear probing. An entry whose counts become 0 stays until rebuild.
type hopIndex struct {
	entries []hopEntry // length is a power of two, and more than twice the queue's capacity
	used    int
	key     [2]uint64 // must not be guessable: senders choose destinations
}

type hopEntry struct {
	dst     header.Addr
	used    bool
	waiting countByPrecedence
}

// countByPrecedence has the number of waiting packets of each precedence.
type countByPrecedence [established + 1]uint16

func newHopIndex(limit int, key [2]uint64) hopIndex {
	return hopIndex{entries: make([]hopEntry, 2<<bits.Len(uint(limit))), key: key}
}

// of returns the entry of a destination, or a free entry for it.
func (x *hopIndex) of(dst *header.Addr) *hopEntry {
	for i := x.hash(dst); ; i++ {
		if e := &x.entries[i%uint64(len(x.entries))]; !e.used || e.dst == *dst {
			return e
		}
	}
}

func (x *hopIndex) hash(a *header.Addr) uint64 {
	hi, lo := bits.Mul64(binary.BigEndian.Uint64(a[:8])^x.key[0], x.key[1]|1)
	hi, lo = bits.Mul64(binary.BigEndian.Uint64(a[8:])^hi^lo, x.key[0]|1)
	return (hi ^ lo) >> 32
}

// add counts a packet.
func (x *hopIndex) add(o *outgoing) {
	e := x.of(&o.dst)
	if !e.used {
		e.used, e.dst = true, o.dst
		x.used++
	}
	e.waiting[o.precedence]++
}

// remove is the inverse of add.
func (x *hopIndex) remove(o *outgoing) { x.of(&o.dst).waiting[o.precedence]-- }

// crowded reports whether half of the entries are in use, so that a rebuild is due.
func (x *hopIndex) crowded() bool { return x.used >= len(x.entries)/2 }

// rebuild counts the packets in held again.
func (x *hopIndex) rebuild(held []heldPacket) {
	clear(x.entries)
	x.used = 0
	for i := range held {
		x.add(&held[i].o)
	}
}

// total returns how many packets wait.
func (n *countByPrecedence) total() (sum int) {
	for _, of := range n {
		sum += int(of)
	}
	return sum
}

// lowest returns the lowest precedence of the waiting packets, highest the highest. There must be a
// packet.
func (n *countByPrecedence) lowest() precedence {
	for p := unproven; ; p++ {
		if n[p] > 0 {
			return p
		}
	}
}

func (n *countByPrecedence) highest() precedence {
	for p := established; ; p-- {
		if n[p] > 0 {
			return p
		}
	}
}

type heldPacket struct {
	o        outgoing
	deadline flowtable.Time
}
