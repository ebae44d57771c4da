package services

import (
	"net/netip"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/nat/header"
)

// Prefixes is an immutable set of CIDRs.
type Prefixes struct {
	list  []netip.Prefix
	table bart.Lite
	// A set made by And has these fields instead: the set that it extends, and the added CIDR.
	common *Prefixes
	also   netip.Prefix
}

// NewPrefixes returns the set of a list, or nil if the list is empty.
func NewPrefixes(list []netip.Prefix) *Prefixes {
	if len(list) == 0 {
		return nil
	}
	p := &Prefixes{list: list}
	for _, x := range list {
		p.table.Insert(x.Masked())
	}
	return p
}

// And returns a set with one more CIDR. p must be from NewPrefixes. The new set shares the memory
// of p, which may have tens of thousands of CIDRs and be used by thousands of frontends.
func (p *Prefixes) And(x netip.Prefix) *Prefixes { return &Prefixes{common: p, also: x.Masked()} }

// Parts returns the set from NewPrefixes that a set is or extends, and the CIDR that And has added;
// the zero Prefix if none.
func (p *Prefixes) Parts() (common *Prefixes, also netip.Prefix) {
	if p == nil || p.common == nil {
		return p, also
	}
	return p.common, p.also
}

// Contains reports whether an address is in one of the CIDRs. A nil set is empty.
func (p *Prefixes) Contains(a header.Addr) bool {
	switch {
	case p == nil:
		return false
	case p.common != nil:
		return p.also.Contains(a.Netip()) || p.common.table.Contains(a.Netip())
	}
	return p.table.Contains(a.Netip())
}

// List returns the CIDRs in the order in which they were given. The caller must not change it.
func (p *Prefixes) List() []netip.Prefix {
	switch {
	case p == nil:
		return nil
	case p.common != nil:
		return append(p.common.list[:len(p.common.list):len(p.common.list)], p.also)
	}
	return p.list
}

// Match returns the longest CIDR that has the address. Unlike Contains it walks the whole list: it
// is for display.
func (p *Prefixes) Match(a header.Addr) (longest netip.Prefix, ok bool) {
	for _, x := range p.List() {
		if x.Contains(a.Netip()) && (!ok || x.Bits() > longest.Bits()) {
			longest, ok = x, true
		}
	}
	return longest, ok
}
