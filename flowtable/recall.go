package flowtable

import (
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// If a search ends a reported flow (group.go), the flow's port is held until the other gateways
// have acknowledged the end, so the search does not get it. The port is *recalled*: the handle
// remembers it for a later flow to the same backend. A search recalls
//
//	one port if it finds none, or gets a recalled one
//	one for each recalled one that another search has found
//	one in reserve, if it gets the last recalled one that is released
//	one if it tries more than shortTries ports, and none towards the backend is recalled
//
// So when ports become short, flows are refused for one round trip between gateways. After that
// each flow gets the port that was recalled for an earlier one.
//
// If a gateway does not acknowledge, its lease runs out, and from then on flows of which it may
// have copies keep their ports (Table.OutOfStepSince). Until then at most maxRecalls flows end
// whose ports stay held.
type recalls struct {
	list [maxRecalls]recall // in their order
	n    int
}

// recall is a port that is recalled.
type recall struct {
	to   uint64 // hash of the reply key without the port
	flow Ref    // that has ended
	port uint16
	// until is the time at which the port's rest ends, if rests is set. Otherwise it is the time
	// after which the port is no longer expected to be released.
	until Ticks
	rests bool
}

const (
	maxRecalls = 128 // 64,000 new flows a second with round trips of 2 ms

	// recallTicks is how long the release of a recalled port is awaited: longer than a lease.
	recallTicks = int32(time.Second / conn.Tick)

	// shortTries is the number of tries beyond which ports are short.
	shortTries = maxPortTries / 2

	// recallLooks bounds the recalled ports that one search finds not to be released.
	recallLooks = 8
)

// due reports whether a recalled port may still become free.
func (h *Handle) due(r *recall, now Ticks) bool {
	return (r.rests || h.Held(r.flow)) && r.until.Since(now) > 0
}

func (r *recalls) remove(k int) {
	copy(r.list[k:], r.list[k+1:r.n])
	r.n--
}

// takeRecalled takes a port that was recalled and is released. It returns the number of ports to
// recall.
func (ps *portSearch) takeRecalled(h *Handle) (hash uint64, s Status, recalls int) {
	r, proto := h.recalls, ps.n.Client.Proto
	s = PortsExhausted
	for k, looks := 0, 0; k < r.n && looks < recallLooks; {
		c := r.list[k]
		switch {
		case c.to != ps.to:
			k++
			continue
		case h.due(&c, ps.now):
			k++
			looks++
			continue
		}
		if s == Created && !h.Held(c.flow) {
			return hash, s, recalls + 1
		}
		if until := ps.restOf(h, &c); until.Since(ps.now) > 0 {
			r.list[k].rests, r.list[k].until = true, until // another gateway has forwarded a question
			k++
			looks++
			continue
		}
		if r.remove(k); h.Held(c.flow) {
			continue
		}
		if hash, s = ps.probe(h, c.port, header.Stateful(proto)); s == Created {
			h.p.portsTaken[b2i(header.Stateful(proto))].Add(1)
		} else {
			recalls++ // another search has it
		}
	}
	return hash, s, recalls + 1 + b2i(s == Created)
}

// restOf returns the time up to which a recalled UDP port that is released rests.
func (ps *portSearch) restOf(h *Handle, c *recall) Ticks {
	k := ps.reply
	if k.ports = ps.n.replyPorts(c.port); h.Held(c.flow) || header.Stateful(k.proto) {
		return ps.now
	}
	resting, hash := h.t.restingOf(k.proto), h.secret.hash(ps.a.v6, &k)
	if !resting.has(hash, ps.now) {
		return ps.now
	}
	return Ticks(resting.at(hash).Load())
}

// recalled reports whether a port towards the backend is recalled.
func (ps *portSearch) recalled(h *Handle) bool {
	for k := range h.recalls.list[:h.recalls.n] {
		if h.recalls.list[k].to == ps.to {
			return true
		}
	}
	return false
}

// recall ends the reported holder of a common port that is first in the order of shedding, unless
// too many ports are recalled.
func (ps *portSearch) recall(h *Handle) {
	r := h.recalls
	if r.n == maxRecalls {
		if h.due(&r.list[0], ps.now) {
			return
		}
		r.remove(0)
	}
	for first := ps.first(h, true); first != nil; first = ps.first(h, true) {
		v := first.victim
		first.kind = shedNever
		if !ps.n.isSpare(first.port) && h.shedFlow(ps.a, v.record, v.meta, v.kind) {
			r.list[r.n] = recall{to: ps.to, flow: ps.a.ref(v.record), port: first.port,
				until: ps.now + Ticks(recallTicks)}
			r.n++
			return
		}
	}
}
