package members

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/announce/layer2/hello"
)

// table is the list of VIPs of another member, made of the received parts. A part replaces its
// previous version at once. A VIP stays in one part as long as it is listed (outgoing), so the
// state of each VIP is correct even if parts have different versions, and a list that changes all
// the time is still complete.
type table struct {
	whole bool // each part has arrived once
	parts []arrived
	vips  map[netip.Addr]listed
}

// arrived is a version of a part; entries is nil if it has not arrived.
type arrived struct {
	entries []hello.Entry
	version uint64
}

// listed is a VIP in a table.
type listed struct {
	rank Rank
	not  bool // hello.Entry.Not
	part int  // index of its part
}

// take stores a received part, and returns the VIPs that may have changed.
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

// drop removes the VIPs of a part, except VIPs that have moved to another part.
func (t *table) drop(part int, changed []netip.Addr) []netip.Addr {
	for _, e := range t.parts[part].entries {
		if t.vips[e.VIP].part == part {
			delete(t.vips, e.VIP)
			changed = append(changed, e.VIP)
		}
	}
	return changed
}
