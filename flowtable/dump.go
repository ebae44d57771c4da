package flowtable

import (
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// Info describes one flow for display.
type Info struct {
	Ref           Ref
	Client, Reply header.Tuple
	State         State
	Reset         bool // the last packet was an RST
	Fin           bool // direct return: the client has sent a FIN, and no data since
	Idle          time.Duration
	Expires       time.Duration // zero: expired, not yet swept
	Age           time.Duration // since the flow was made or its connection was established
	Start         Time          // of a table with a Log; 0 if it is not known
	Metered       bool          // Traffic has all packets of the flow
	Traffic       [2]Traffic    // by the side on which the packets arrived
	Service       uint32
	Backend       uint32
	Binding       uint32
	Counted       bool   // in the load of its backend
	YieldsPort    bool   // a new flow may take its source port if no other is free
	Direct        bool   // direct return: Reply is the reverse of Client, and Backend is a node
	Mark          uint32 // of a direct flow: the NodeMark of its node
	Proxied       bool   // a PROXY header is in front of the client's bytes
	HeaderSent    bool   // the PROXY header has been sent
	HeaderAcked   bool   // the backend has acknowledged it
	Tracked       bool   // other gateways of the group are to have copies
	CopyOf        int    // the owner of a copy, 0 for a flow of this gateway
}

// Dump copies live flows to buf from a cursor on, which is 0 for the first call. It returns the
// cursor for the next call, or 0 at the end, and the number of flows copied. An offline handle is
// online only during the call, so a slow reader does not delay the reuse of records. Dump may miss
// flows that are made or end meanwhile; it returns no flow twice.
func (h *Handle) Dump(cursor uint64, buf []Info, now Time) (next uint64, n int) {
	if !h.online {
		h.Enter(now)
		defer h.Leave()
	}
	// Bound the slice, for the case that few flows are live.
	const slice = 1 << 16
	end := min(cursor+slice, h.t.positions())
	for cursor < end && n < len(buf) {
		a, first, stop, positions := h.t.slice(cursor, int(end-cursor))
		i := first
		for ; i < stop && n < len(buf); i++ {
			if h.info(a, i, now.Ticks(), &buf[n]) {
				n++
			}
		}
		if i < stop {
			return cursor + uint64(i-first), n
		}
		cursor += uint64(positions)
	}
	if cursor >= h.t.positions() {
		return 0, n
	}
	return cursor, n
}

// Inspect describes one flow in out. It returns false if the flow has ended.
func (h *Handle) Inspect(r Ref, now Time, out *Info) bool {
	return h.info(h.arena(r&refV6 != 0), r.index(), now.Ticks(), out)
}

func (h *Handle) info(a *arena, i uint32, now Ticks, out *Info) bool {
	f := a.flow(i)
	m := f.load()
	if !m.Live() {
		return false
	}
	left := h.t.lifetimes[m.Life()] - now.Since(m.Seen())
	*out = Info{
		Ref:     a.ref(i),
		State:   m.State(),
		Idle:    max(0, conn.Span(m.Seen(), now)),
		Expires: max(0, time.Duration(left)*conn.Tick),
		Age:     f.age(m, now),
		Binding: f.Binding(),
	}
	if h.log != nil {
		l := h.log.log
		account := &l.accounts[family(a.v6)][i]
		if out.Start, out.Metered = l.startOf(account, f); out.Metered {
			out.Traffic = [2]Traffic{account.of(ClientSide), account.of(ReplySide)}
		}
	}
	out.Service, out.Backend = f.Owner()
	out.Counted = f.owner.Load()&counted != 0
	out.Proxied, out.HeaderSent, out.HeaderAcked = m.Proxied(), m.HeaderSent(), m.HeaderAcked()
	if h.t.group.marks != nil {
		mark := h.t.mark(a, i).Load()
		out.Tracked, out.CopyOf = mark&markTracked != 0, ownerOf(mark)
	}
	if out.Direct = a.direct(i); out.Direct {
		out.Mark, out.Fin = h.Mark(out.Ref), m.FinOneSided()
	}
	out.Reset = m.Reset() && !out.Fin
	out.YieldsPort = h.t.yieldsPort(a, i, m, now) != shedNever
	a.tuple(i, ClientSide, &out.Client)
	a.tuple(i, ReplySide, &out.Reply)
	return true
}

// age returns the time since the flow was made or its connection was established. In SynRecv of TCP
// it is the time since the backend answered, because nothing refreshes the flow meanwhile. With a
// PROXY header it is the time since the last packet.
func (f *Flow) age(m conn.Meta, now Ticks) time.Duration {
	since := Ticks(f.word())
	if m.KeepsISN() {
		since = m.Seen()
	}
	return max(0, conn.Span(since, now))
}

// Counts are the table's counters.
type Counts struct {
	Live        [2]uint64 // IPv4, IPv6
	Capacity    [2]uint64
	States      [NumStates]uint64 // both families
	ByFamily    [2][NumStates]uint64
	HalfOpen    uint64 // of both families, as MaxHalfOpen
	MaxHalfOpen uint64
	Created     [2]uint64
	Shed        [NumSheds]uint64
	Refused     [PortsExhausted + 1]uint64 // by Status; the first two stay 0
	// PortsTaken counts source ports that a new flow took from a live one: [0] UDP, [1] TCP and
	// SCTP.
	PortsTaken [restingTables]uint64
	// SourcesEvicted counts sources whose allowance was dropped before it was full again, and
	// SourcesMissed flows that are not counted for their source, both for lack of room in the table
	// of sources.
	SourcesEvicted, SourcesMissed uint64
}

// Counts sums up the counters of all participants. It is exact if all are idle, and an
// approximation otherwise.
func (t *Table) Counts() (c Counts) {
	sums := t.recovered
	for i := range t.participants[:t.watermark.Load()] {
		p := &t.participants[i]
		p.addTo(&sums)
		for f := range c.Created {
			c.Created[f] += p.created[f].Load()
		}
		for k := range c.Shed {
			c.Shed[k] += p.shed[k].Load()
		}
		for k := range c.PortsTaken {
			c.PortsTaken[k] += p.portsTaken[k].Load()
		}
		for k := range p.refused {
			c.Refused[int(TableFull)+k] += p.refused[k].Load()
		}
	}
	for f := range sums {
		c.Capacity[f] = uint64(t.arenas[f].flows)
		c.Live[f] = uint64(max(0, sums[f][None]))
		for s := range c.States {
			if s != int(None) {
				c.ByFamily[f][s] = uint64(max(0, sums[f][s]))
				c.States[s] += c.ByFamily[f][s]
			}
		}
	}
	c.SourcesEvicted, c.SourcesMissed = t.sources.evicted.Load(), t.sources.missed.Load()
	c.HalfOpen = c.States[SynSeen] + c.States[SynRecv]
	c.MaxHalfOpen = uint64(t.halfOpen)
	return c
}
