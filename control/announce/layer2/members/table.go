package members

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/control/announce/layer2/hello"
)

// table is the list of VIPs of another member, of the parts that have come. A part replaces the one
// before it at once: a VIP is in one part for as long as it is listed (outgoing), and so what has
// come is true of each VIP, whatever version it is of. There is no list that is never complete
// because it changes all the time.
type table struct {
	whole bool // all parts have come once
	parts [][]hello.Entry
	vips  map[netip.Addr]listed
}

// listed is a VIP in a table.
type listed struct {
	leaving, not bool // as hello.Entry says
	part         int  // that has it
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
		t.parts = append(t.parts, make([][]hello.Entry, n-len(t.parts))...)
	}
	at := int(h.Part)
	if t.parts[at] == nil || !slices.Equal(t.parts[at], h.VIPs) {
		changed = t.drop(at, changed)
		t.parts[at] = append([]hello.Entry{}, h.VIPs...) // not nil
		for _, e := range h.VIPs {
			t.vips[e.VIP] = listed{e.Leaving, e.Not, at}
			changed = append(changed, e.VIP)
		}
	}
	t.whole = t.whole || !slices.ContainsFunc(t.parts, func(p []hello.Entry) bool { return p == nil })
	return changed
}

// drop takes the VIPs of a part out, but for those that are in another one by now.
func (t *table) drop(part int, changed []netip.Addr) []netip.Addr {
	for _, e := range t.parts[part] {
		if t.vips[e.VIP].part == part {
			delete(t.vips, e.VIP)
			changed = append(changed, e.VIP)
		}
	}
	return changed
}
