package flowtable

import (
	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/prefetch"
)

// Ports is a range of source ports, Count ports from First on, which are tried in the order First +
// (Start + i*Stride) mod Count. Start and Stride must not be guessable (RFC 6056), and Stride
// should be coprime to Count. No ports (Count 0) means that SourcePort is the only choice.
type Ports struct{ First, Count, Start, Stride uint16 }

// at returns the port of the i-th try, as an offset from First.
func (p *Ports) at(i int) uint16 {
	stride := max(uint32(p.Stride)%uint32(p.Count), 1)
	return uint16((uint32(p.Start) + uint32(i)*stride) % uint32(p.Count))
}

// The last eighth of the ports of a range is spare for UDP: a flow gets a spare port only if it
// finds no other port and the network of its client holds few ports (portSearch.mayUseSpare). A new
// flow never takes the port of a UDP flow that waits for its answer, so without spare ports one
// client whose questions get no answer could hold all ports towards a backend. Small ranges have no
// spare ports.
const (
	sparePart     = 8
	minSpareRange = 256
	spareTries    = 8
)

// spare returns how many ports of the range are spare for a flow.
func (n *NewFlow) spare() uint16 {
	if n.Client.Proto != header.ProtoUDP || n.Ports.Count < minSpareRange {
		return 0
	}
	return n.Ports.Count / sparePart
}

// isSpare reports whether a port is spare for a flow.
func (n *NewFlow) isSpare(port uint16) bool {
	at := port - n.Ports.First
	return at < n.Ports.Count && at >= n.Ports.Count-n.spare()
}

// Port returns the port of the i-th try, if there is one. It never returns a spare port: where the
// order of Ports has one, Port returns another port.
func (n *NewFlow) Port(i int) (port uint16, ok bool) {
	if n.SourcePort != 0 {
		if i == 0 {
			return n.SourcePort, true
		}
		i--
	}
	if i >= int(n.Ports.Count) {
		return 0, false
	}
	at, spare := n.Ports.at(i), n.spare()
	if common := n.Ports.Count - spare; at >= common {
		at = (at - common) * (sparePart - 1)
	}
	return n.Ports.First + at, true
}

// sparePort returns the spare port of the i-th try; spare is the number of spare ports.
func (n *NewFlow) sparePort(i int, spare uint16) uint16 {
	at := (uint32(n.Ports.Start) + uint32(i)*uint32(spare/spareTries)) % uint32(spare)
	return n.Ports.First + n.Ports.Count - spare + uint16(at)
}

// maxPortTries bounds the ports that are tried for one flow: if 50,000 of 64,512 ports are taken,
// one flow in 10^7 finds none that is free. If no port is free but some rest, the ports are tried a
// second time: so there are at most twice as many probes, and one more for the port of a flow that
// is ended. UDP tries no port a second time, but up to spareTries spare ports.
const (
	maxPortTries = 64
	portsAtOnce  = 8 // number of ports whose buckets are prefetched together
)

// Probed returns how many ports the last Create probed: one unless ports are short. Each probe is a
// cache miss; portsAtOnce of them overlap.
func (h *Handle) Probed() int { return h.probed }

// portSearch chooses a source port for a pending flow by committing its reply key. It takes, in
// this order:
//
//	the first port that is free and does not rest
//	for TCP and SCTP, the first port that is free
//	in a table of a group, a port that was recalled (recall.go)
//	the port of a flow that it ends, one of the holders of the other ports
//	for UDP, a spare port in the same way, if the client's network holds few of the other ports
//
// The last steps keep a backend reachable if a flood, or thousands of closed connections, hold its
// ports: there are some ten thousand ports towards a backend, so they run short long before the
// table does. Flows are ended in the order of a full table (Shed), except young handshakes and UDP
// flows whose backend may still answer (awaitsAnswer): these keep their ports; if only such flows
// hold the ports tried, Create fails. Among idle UDP flows it ends the least used one, and among
// equals one from the source prefix that holds most of the ports tried (RFC 6888, REQ-4: ports must
// be shared fairly).
type portSearch struct {
	a     *arena
	i     uint32 // the pending flow
	n     *NewFlow
	reply key
	now   Ticks
	to    uint64 // hash of reply, in a table of a group

	rested bool // a port was skipped because it rests

	holders int // number of entries in Handle.holders, the holders of taken ports
}

// holder is the flow that holds a port.
type holder struct {
	victim
	port     uint16
	held     uint16 // how many of the ports tried the prefix holds; 0 if not computed yet
	reported bool   // other gateways may have a copy: if the flow ends, the port is held
	prefix   uint64 // of the flow's client: /24 or /56
}

// maxHolders bounds the holders that are compared: all, or nearly all, because the second pass
// meets the same holders.
const maxHolders = maxPortTries + spareTries

// reply sets k to the key of the backend's packets, without the ports.
func (n *NewFlow) reply(k *key) {
	k.from(&header.Tuple{Src: n.Backend, Dst: n.Source, Proto: n.Client.Proto, V6: n.Client.V6})
}

// replyPorts returns the ports of the reply key if the flow gets this source port.
func (n *NewFlow) replyPorts(port uint16) uint32 {
	if conn.Initial(n.Client.Proto) == ICMPEcho {
		return uint32(port)<<16 | uint32(port)
	}
	return uint32(n.BackendPort)<<16 | uint32(port)
}

// allocatePort commits the reply key of a pending flow.
func (h *Handle) allocatePort(a *arena, i uint32, n *NewFlow, now Ticks) (hash uint64, s Status) {
	ps := portSearch{a: a, i: i, n: n, now: now}
	n.reply(&ps.reply)
	a.setAddr(i, ReplySide, &ps.reply)
	hash, s = ps.try(h, false)
	if ps.rested && s != Created && header.Stateful(n.Client.Proto) {
		hash, s = ps.try(h, true)
	}
	if s == Created && h.probed <= shortTries {
		return hash, s
	}
	recalls := 0
	if h.recalls != nil {
		ps.reply.ports = n.replyPorts(0)
		if ps.to = h.secret.hash(a.v6, &ps.reply); s != Created {
			hash, s, recalls = ps.takeRecalled(h)
		} else if !ps.recalled(h) {
			recalls = 1
		}
	}
	if s != Created {
		hash, s = ps.takeHeld(h)
	}
	if spare := n.spare(); s != Created && spare != 0 && ps.mayUseSpare(h) {
		if hash, s = ps.trySpare(h, spare); s != Created {
			hash, s = ps.takeHeld(h)
		}
	}
	for range recalls {
		ps.recall(h)
	}
	return hash, s
}

// spareShare: the network of a client gets a spare port if it holds at most one in spareShare of
// the ports tried. If a flood from eight networks holds all ports, 64 tries find at most this share
// for 1 in 100 of its flows; for a flood from four networks, for none.
const spareShare = 32

// mayUseSpare reports whether the client's network holds few of the ports tried.
func (ps *portSearch) mayUseSpare(h *Handle) bool {
	own, prefix := 0, ps.a.prefixOf(ps.i)
	for k := range h.holders[:ps.holders] {
		if h.holders[k].prefix == prefix {
			own++
		}
	}
	return own*spareShare <= ps.holders
}

// trySpare probes spare ports.
func (ps *portSearch) trySpare(h *Handle, spare uint16) (hash uint64, s Status) {
	for i := range spareTries {
		if hash, s = ps.probe(h, ps.n.sparePort(i, spare), false); s == Created {
			return hash, s
		}
	}
	return 0, PortsExhausted
}

// try probes the ports in their order. wake: it also takes ports that rest.
func (ps *portSearch) try(h *Handle, wake bool) (hash uint64, s Status) {
	for try := range maxPortTries {
		if try != 0 && try%portsAtOnce == 0 { // ports are short; the buckets of the first group are in the cache
			h.fetchPorts(ps.a, ps.n, try)
		}
		port, ok := ps.n.Port(try)
		if !ok {
			return 0, PortsExhausted
		}
		preferred := try == 0 && ps.n.SourcePort != 0
		if hash, s = ps.probe(h, port, wake || preferred); s == Created {
			return hash, s
		}
	}
	return 0, PortsExhausted
}

// fetchPorts prefetches the buckets of a flow's next portsAtOnce ports, from try first on.
func (h *Handle) fetchPorts(a *arena, n *NewFlow, first int) {
	var at [portsAtOnce]uint64
	for i := range at {
		port, ok := n.Port(first + i)
		if !ok {
			return
		}
		at[i] = a.home(h.replyHash(a, n, port)) * bucketBytes
	}
	prefetch.WriteAll(a.first(), &at[0], 8, len(at))
}

// probe tries one port.
func (ps *portSearch) probe(h *Handle, port uint16, wake bool) (hash uint64, s Status) {
	h.probed++
	k := &ps.reply
	k.ports = ps.n.replyPorts(port)
	if ps.n.untranslated(k.ports) {
		return 0, PortsExhausted
	}
	hash = h.secret.hash(ps.a.v6, k)
	if !wake && h.t.restingOf(k.proto).has(hash, ps.now) {
		ps.rested = true
		return 0, PortsExhausted
	}
	f := ps.a.flow(ps.i)
	f.ports[ReplySide].Store(k.ports)
	slot, ins := h.insert(ps.a, hash, k, slotOf(ps.i, ReplySide), ps.now)
	if ins == taken {
		ps.noteHolder(h, slotIndex(slot), port)
	}
	if ins != inserted {
		return 0, PortsExhausted
	}
	if !wake && h.t.restingOf(k.proto).has(hash, ps.now) { // it rests since insert ended an expired holder
		ps.a.remove(hash, slotOf(ps.i, ReplySide))
		ps.rested = true
		return 0, PortsExhausted
	}
	n := ps.n
	out := header.Tuple{Src: n.Source, Dst: n.Backend, SrcPort: port, DstPort: uint16(k.ports >> 16)}
	f.delta = header.DeltaOf(&n.Client, &out)
	return hash, Created
}

// noteHolder adds the holder of a port to the holders.
func (ps *portSearch) noteHolder(h *Handle, i uint32, port uint16) {
	m := ps.a.flow(i).load()
	if !m.Live() || ps.holders == maxHolders {
		return
	}
	kind := h.t.yieldsPort(ps.a, i, m, ps.now)
	for k := range h.holders[:ps.holders] {
		if h.holders[k].record == i {
			return // the second try meets it again
		}
	}
	reported := h.t.Grouped() && h.t.mark(ps.a, i).Load()&markReported != 0
	h.holders[ps.holders] = holder{victim: victim{i, m, kind}, port: port, prefix: ps.a.prefixOf(i), reported: reported}
	ps.holders++
}

// yieldsPort returns the kind as which a flow may be ended for its source port, or shedNever.
func (t *Table) yieldsPort(a *arena, i uint32, m conn.Meta, now Ticks) Shed {
	if m.State().HalfOpen() && now.Since(m.Seen()) < halfOpenGrace || t.awaitsAnswer(m, now) || t.outOfStep(a, i, m) {
		return shedNever
	}
	return t.mayShed(a, i, m, now)
}

// prefixOf returns the prefix of a flow's client, of a length that one subscriber is likely to
// have: the first 24 bits of IPv4, 56 of IPv6 (RFC 6177 section 2).
func (a *arena) prefixOf(i uint32) uint64 {
	if a.v6 {
		return a.six[i].addr[ClientSide][0] >> 8
	}
	return a.four[i].addr[ClientSide] >> 40
}

// takeHeld ends the holder that is first in the order of shedding, unless its flow has changed
// since or is reported, and takes its port, even if the port rests now. If it does not get the
// port, it tries the next holder.
func (ps *portSearch) takeHeld(h *Handle) (hash uint64, s Status) {
	for range ps.holders {
		first := ps.first(h, false)
		if first == nil {
			break
		}
		v := first.victim
		first.kind = shedNever
		if !h.shedFlow(ps.a, v.record, v.meta, v.kind) {
			continue
		}
		if h.t.Grouped() && ps.a.flow(v.record).load().Held() {
			break // it was reported just now
		}
		if hash, s = ps.probe(h, first.port, true); s == Created {
			h.p.portsTaken[b2i(header.Stateful(v.meta.Proto()))].Add(1)
			return hash, s
		}
	}
	return 0, PortsExhausted
}

// first returns the holder to end first, among reported holders or among the others, or nil.
func (ps *portSearch) first(h *Handle, reported bool) (first *holder) {
	for k := range h.holders[:ps.holders] {
		c := &h.holders[k]
		if c.reported == reported && c.kind != shedNever && (first == nil || ps.before(h, c, first)) {
			first = c
		}
	}
	return first
}

// before reports whether holder c must end before holder first.
func (ps *portSearch) before(h *Handle, c, first *holder) bool {
	if c.kind != first.kind {
		return c.kind < first.kind
	}
	if c.kind == ShedIdle {
		if used, least := c.meta.UsedSeconds(), first.meta.UsedSeconds(); used != least {
			return used < least
		}
		if n, most := ps.held(h, c), ps.held(h, first); n != most {
			return n > most
		}
	}
	return ps.now.Since(c.meta.Seen()) > ps.now.Since(first.meta.Seen())
}

// held returns how many of the ports tried are held by the holder's prefix.
func (ps *portSearch) held(h *Handle, of *holder) uint16 {
	if of.held == 0 {
		for k := range h.holders[:ps.holders] {
			if h.holders[k].prefix == of.prefix {
				of.held++
			}
		}
	}
	return of.held
}
