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
	// A set of And has these instead: all but one of its CIDRs, and that one.
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

// And returns the set of NewPrefixes with one more CIDR. It shares the memory of the set, which may
// be tens of thousands of CIDRs, and of thousands of frontends.
func (p *Prefixes) And(x netip.Prefix) *Prefixes { return &Prefixes{common: p, also: x.Masked()} }

// Parts returns the set of NewPrefixes that a set is or was made of, and what And has added to it;
// otherwise that is the zero Prefix.
func (p *Prefixes) Parts() (common *Prefixes, also netip.Prefix) {
	if p == nil || p.common == nil {
		return p, also
	}
	return p.common, p.also
}

// Contains reports whether an address is in one of the CIDRs. The nil set has none.
func (p *Prefixes) Contains(a header.Addr) bool {
	switch {
	case p == nil:
		return false
	case p.common != nil:
		return p.also.Contains(a.Netip()) || p.common.table.Contains(a.Netip())
	}
	return p.table.Contains(a.Netip())
}

// List returns the CIDRs in the order given. It must not be written.
func (p *Prefixes) List() []netip.Prefix {
	switch {
	case p == nil:
		return nil
	case p.common != nil:
		return append(p.common.list[:len(p.common.list):len(p.common.list)], p.also)
	}
	return p.list
}

// Match returns the longest of the CIDRs that an address is in. Unlike Contains it walks the whole
// list: it is for display.
func (p *Prefixes) Match(a header.Addr) (longest netip.Prefix, ok bool) {
	for _, x := range p.List() {
		if x.Contains(a.Netip()) && (!ok || x.Bits() > longest.Bits()) {
			longest, ok = x, true
		}
	}
	return longest, ok
}
