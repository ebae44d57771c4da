package members

import (
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/announce/layer2/hello"
)

const (
	// maxBurst bounds the hellos per interval: 16 have room for 1,920 IPv4 addresses, or 560 of
	// IPv6.
	maxBurst = 16
	// repeats is how often a changed part is sent at once, because frames get lost. After that it
	// is sent in turn.
	repeats = 2
)

// outgoing is the state of this member's hellos.
type outgoing struct {
	next     time.Time
	sequence uint64
	table    uint64
	parts    []part // of the list of VIPs; one at least
	turn     int    // the part to send next if none is due
	sent     int    // hellos in this interval
	now      bool   // a hello must be sent at once
}

// part is a part of the list. A VIP stays in its part, so that a change affects few parts, and
// parts of different versions form a list in which each VIP has its old or its new state.
type part struct {
	entries []hello.Entry
	bytes   int
	due     int // how often it must be sent before its turn
}

func (p *part) set(entries []hello.Entry) {
	p.entries, p.bytes, p.due = entries, 0, repeats
	for _, e := range entries {
		p.bytes += e.Bytes()
	}
}

// add appends an entry. Pending hellos share the array and are not affected.
func (p *part) add(e hello.Entry) {
	p.entries, p.bytes, p.due = append(p.entries, e), p.bytes+e.Bytes(), repeats
}

// list replaces the list of VIPs. Changed parts become due.
func (o *outgoing) list(entries []hello.Entry) {
	o.table++
	added := make(map[netip.Addr]hello.Entry, len(entries))
	for _, e := range entries {
		added[e.VIP] = e
	}
	for i := range o.parts {
		p := &o.parts[i]
		var stay []hello.Entry
		for _, e := range p.entries {
			if as, there := added[e.VIP]; there {
				stay = append(stay, as)
				delete(added, e.VIP)
			}
		}
		if !slices.Equal(stay, p.entries) {
			p.set(stay)
		}
	}
	if len(o.parts) == 0 {
		o.parts = []part{{due: repeats}}
	}
	i := 0
	for _, e := range entries {
		if _, new := added[e.VIP]; !new {
			continue
		}
		for i < len(o.parts) && o.parts[i].bytes+e.Bytes() > hello.MaxBytes {
			i++
		}
		if i == len(o.parts) {
			o.parts = append(o.parts, part{})
		}
		o.parts[i].add(e)
	}
	for last := len(o.parts) - 1; last > 0 && len(o.parts[last].entries) == 0; last-- {
		o.parts = o.parts[:last]
	}
	o.turn %= len(o.parts)
}

// again makes all parts due, for a member that does not have the list.
func (o *outgoing) again() {
	for i := range o.parts {
		o.parts[i].due = repeats
	}
}

// due returns how many parts are due, and how many of them were not sent since they changed.
func (o *outgoing) due() (all, first int) {
	for i := range o.parts {
		switch o.parts[i].due {
		case 0:
		case repeats:
			first++
			fallthrough
		default:
			all++
		}
	}
	return all, first
}

// take returns the index of the part to send next: the due part that was not sent for longest; or,
// regularly or if none is due, the part whose turn it is.
func (o *outgoing) take(regularly bool) int {
	next := o.turn
	for most := repeats; most > 0 && !regularly; most-- {
		for k := range o.parts {
			if i := (o.turn + k) % len(o.parts); o.parts[i].due == most {
				next, regularly = i, true
				break
			}
		}
	}
	if next == o.turn {
		o.turn = (o.turn + 1) % len(o.parts)
	}
	o.parts[next].due = max(o.parts[next].due-1, 0)
	return next
}

// Hellos returns the hellos to send now: one per interval, with the part whose turn it is, so that
// no part waits for ever, and the due parts within the bound.
func (m *Members) Hellos(now time.Time) (list []*hello.Hello) {
	o := &m.out
	if !now.Before(o.next) {
		o.sent = 1
		if o.next = o.next.Add(m.config.Every); !o.next.After(now) {
			o.next = now.Add(m.config.Every) // missed intervals are skipped
		}
		others, _ := o.due()
		if o.parts[o.turn].due > 0 {
			others--
		}
		list = append(list, m.nextHello(o.take(true), now))
		return append(list, m.dueHellos(others, now)...)
	}
	_, n := o.due()
	if list = m.dueHellos(n, now); len(list) == 0 && o.now {
		o.now = false
		list = append(list, m.nextHello(o.take(false), now))
	}
	return list
}

// dueHellos returns up to n hellos, as many as this interval allows.
func (m *Members) dueHellos(n int, now time.Time) (list []*hello.Hello) {
	n = min(n, maxBurst-m.out.sent)
	for range n {
		list = append(list, m.nextHello(m.out.take(false), now))
	}
	m.out.sent += max(n, 0)
	return list
}

// Goodbye gives up all VIPs, and returns the hello with that. With keep, it asks the others to keep
// them for the next process of this gateway, which continues to forward, unless this member still
// joins.
func (m *Members) Goodbye(keep bool, now time.Time) *hello.Hello {
	if !m.saidGoodbye {
		m.keepRequested = keep && m.config.Return > 0 && !m.joining()
	}
	m.saidGoodbye = true
	m.decide()
	return m.nextHello(m.out.take(true), now)
}

// nextHello returns a hello with a part of the list.
func (m *Members) nextHello(part int, now time.Time) *hello.Hello {
	o := &m.out
	o.now = false
	o.sequence++
	h := &hello.Hello{Name: m.config.Name, Incarnation: m.config.Incarnation, Sequence: o.sequence,
		Nonce: m.nonces[len(m.nonces)-1], Joining: m.joining(), Goodbye: m.saidGoodbye && !m.keepRequested,
		Returning: m.saidGoodbye && m.keepRequested, Table: o.table,
		Part: uint16(part), Parts: uint16(len(o.parts)), VIPs: o.parts[part].entries}
	for _, other := range m.others {
		if now.Before(other.lastReceived.Add(m.silence())) {
			h.Heard = append(h.Heard, other.nonce)
		}
	}
	return h
}
