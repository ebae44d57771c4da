package pools

import (
	"math/bits"
	"net/netip"
)

// addressSet is a set of addresses of one family. It finds the first address outside of the set in
// a time that depends only on the length of an address. It is a trie with one byte of the address
// per level. Each node knows which of its children are full.
//
// With avoid, for IPv4 only, each address that ends with 0 or 255 (buggy) counts as in the set.
type addressSet struct {
	root  node
	avoid bool
}

// node is one level of the trie. A bit of full is set if all addresses below that child (on the
// last level: that address) are in the set. A missing child has no address in the set.
type node struct {
	full     [4]uint64
	children map[byte]*node
}

func (n *node) set(b int)   { n.full[b>>6] |= 1 << (b & 63) }
func (n *node) clear(b int) { n.full[b>>6] &^= 1 << (b & 63) }
func (n *node) all() bool   { return n.full == [4]uint64{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)} }

// next returns the first child from b on that is not full, and 256 if all are.
func (n *node) next(b int) int {
	for word := b >> 6; word < 4; word++ {
		free := ^n.full[word]
		if word == b>>6 {
			free &= ^uint64(0) << (b & 63)
		}
		if free != 0 {
			return word<<6 + bits.TrailingZeros64(free)
		}
	}
	return 256
}

// leaf returns a node of the last level without addresses, except the ones that avoid adds.
func (t *addressSet) leaf() *node {
	n := &node{}
	if t.avoid {
		n.set(0)
		n.set(255)
	}
	return n
}

// add puts an address into the set.
func (t *addressSet) add(a netip.Addr) { t.addBelow(&t.root, a.AsSlice()) }

func (t *addressSet) addBelow(n *node, rest []byte) {
	b := int(rest[0])
	if len(rest) == 1 {
		n.set(b)
		return
	}
	child := n.children[rest[0]]
	if child == nil {
		child = &node{}
		if len(rest) == 2 {
			child = t.leaf()
		}
		if n.children == nil {
			n.children = map[byte]*node{}
		}
		n.children[rest[0]] = child
	}
	t.addBelow(child, rest[1:])
	if child.all() {
		n.set(b)
	}
}

// remove takes an address out of the set.
func (t *addressSet) remove(a netip.Addr) {
	if t.avoid && buggy(a) {
		return
	}
	t.removeBelow(&t.root, a.AsSlice())
}

// removeBelow reports whether a node is empty now, so that its parent can drop it.
func (t *addressSet) removeBelow(n *node, rest []byte) (empty bool) {
	b := int(rest[0])
	n.clear(b)
	if len(rest) == 1 {
		return n.full == t.leaf().full
	}
	if child := n.children[rest[0]]; child != nil && t.removeBelow(child, rest[1:]) {
		delete(n.children, rest[0])
	}
	return len(n.children) == 0
}

// first returns the first address from..to that is not in the set.
func (t *addressSet) first(from, to netip.Addr) (netip.Addr, bool) {
	at := from.AsSlice()
	if !t.firstBelow(&t.root, at, 0) {
		return netip.Addr{}, false
	}
	a, _ := netip.AddrFromSlice(at)
	return a, !to.Less(a)
}

// firstBelow sets at[level:] so that at is the first address that is not in the set and not before
// the given one. It reports whether there is one below n.
func (t *addressSet) firstBelow(n *node, at []byte, level int) bool {
	last := level == len(at)-1
	if n == nil {
		switch {
		case !last:
			if t.firstBelow(nil, at, level+1) {
				return true
			}
			if at[level] == 255 {
				return false
			}
			at[level]++
			clear(at[level+1:])
			return t.firstBelow(nil, at, level+1)
		case !t.avoid:
			return true
		}
		n = t.leaf()
	}
	for b := n.next(int(at[level])); b < 256; b = n.next(b + 1) {
		if b != int(at[level]) {
			at[level] = byte(b)
			clear(at[level+1:])
		}
		if last || t.firstBelow(n.children[byte(b)], at, level+1) {
			return true
		}
	}
	return false
}
