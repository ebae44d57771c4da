package members

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/announce/layer2/hello"
)

// table is the list of VIPs of another member, of the parts that have come. A part replaces the one
// before it at once: a VIP is in one part for as long as it is listed (outgoing), and so what has
// come is true of each VIP, whatever version it is of. There is no list that is never complete
// because it changes all the time.
type table struct {
	whole bool // all parts have come once
	parts []arrived
	vips  map[netip.Addr]listed
}

// arrived is a part that has come, of a version; nil: it has not.
type arrived struct {
	entries []hello.Entry
	version uint64
}

// listed is a VIP in a table.
type listed struct {
	rank Rank
	not  bool // as hello.Entry says
	part int  // that has it
}

// take puts a part into the table, and returns the VIPs that it may have changed.
func (t *table) take(h *hello.Hello) (changed []netip.Addr) {
	if t.vips == nil {
		t.vips = map[netip.Addr]listed{}
	}
	for i := int(h.Parts); i < len(t.parts); i++ {
		changed = t.drop(i, changed)
	}
	if n := int(h.Parts); n < len(t.parts) {
		t.parts = t.parts[:n]
	} else {
		t.parts = append(t.parts, make([]arrived, n-len(t.parts))...)
	}
	at := int(h.Part)
	p := &t.parts[at]
	if p.entries != nil && p.version == h.Table {
		return changed
	}
	p.version = h.Table
	if p.entries == nil || !slices.Equal(p.entries, h.VIPs) {
		changed = t.drop(at, changed)
		p.entries = append([]hello.Entry{}, h.VIPs...) // not nil
		for _, e := range h.VIPs {
			rank := Stays
			switch {
			case e.LastResort:
				rank = LastResort
			case e.Leaving:
				rank = Leaves
			}
			t.vips[e.VIP] = listed{rank, e.Not, at}
			changed = append(changed, e.VIP)
		}
	}
	t.whole = t.whole || !slices.ContainsFunc(t.parts, func(p arrived) bool { return p.entries == nil })
	return changed
}

// drop takes the VIPs of a part out, but for those that are in another one by now.
func (t *table) drop(part int, changed []netip.Addr) []netip.Addr {
	for _, e := range t.parts[part].entries {
		if t.vips[e.VIP].part == part {
			delete(t.vips, e.VIP)
			changed = append(changed, e.VIP)
		}
	}
	return changed
}
