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

// Contains reports whether an address is in one of the CIDRs. The nil set has none.
func (p *Prefixes) Contains(a header.Addr) bool { return p != nil && p.table.Contains(a.Netip()) }

// List returns the CIDRs in the order given. It must not be written.
func (p *Prefixes) List() []netip.Prefix {
	if p == nil {
		return nil
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
