package members

import (
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/announce/layer2/hello"
)

const (
	// maxBurst bounds the hellos in an interval: 16 have 1,920 IPv4 addresses, or 560 of IPv6.
	maxBurst = 16
	// repeats is how often a part that has changed is sent before it waits for its turn: frames get
	// lost.
	repeats = 2
)

// outgoing is what we say of ourselves.
type outgoing struct {
	next     time.Time
	sequence uint64
	table    uint64
	parts    []part // of the list of VIPs; one at least
	turn     int    // the part that is next where none is due
	sent     int    // hellos in this interval
	now      bool   // one is to be sent at once
}

// part is one of the list. A VIP stays in the part that it is in: so a change is in few parts, and
// parts of different versions make a list of which each VIP is as it was or as it is.
type part struct {
	entries []hello.Entry
	bytes   int
	due     int // so many times it is to be sent before its turn
}

func (p *part) set(entries []hello.Entry) {
	p.entries, p.bytes, p.due = entries, 0, repeats
	for _, e := range entries {
		p.bytes += e.Bytes()
	}
}

// add appends to the entries. Hellos that have them keep what they have: none of it is written.
func (p *part) add(e hello.Entry) {
	p.entries, p.bytes, p.due = append(p.entries, e), p.bytes+e.Bytes(), repeats
}

// list replaces the list of VIPs. Parts that have changed are to be sent.
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

// again has the whole list sent, to somebody who does not know it.
func (o *outgoing) again() {
	for i := range o.parts {
		o.parts[i].due = repeats
	}
}

// due returns how many parts are to be sent soon, and how many of them were not since they changed.
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

// take returns the part that is to be sent next: of those that are due the one that was not sent
// for longest; or, regularly or if there is none, the one whose turn it is.
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

// Hellos returns what is to be sent now: one each interval, whose part has its turn so that no part
// waits for ever, and what is due besides, within the bound.
func (m *Members) Hellos(now time.Time) (list []*hello.Hello) {
	o := &m.out
	if !now.Before(o.next) {
		o.sent = 1
		if o.next = o.next.Add(m.config.Every); !o.next.After(now) {
			o.next = now.Add(m.config.Every) // what was missed is not made up for
		}
		others, _ := o.due()
		if o.parts[o.turn].due > 0 {
			others--
		}
		list = append(list, m.say(o.take(true), now))
		return append(list, m.sayMore(others, now)...)
	}
	_, n := o.due()
	if list = m.sayMore(n, now); len(list) == 0 && o.now {
		o.now = false
		list = append(list, m.say(o.take(false), now))
	}
	return list
}

// sayMore returns n hellos, as far as there is room for them in this interval.
func (m *Members) sayMore(n int, now time.Time) (list []*hello.Hello) {
	n = min(n, maxBurst-m.out.sent)
	for range n {
		list = append(list, m.say(m.out.take(false), now))
	}
	m.out.sent += max(n, 0)
	return list
}

// Goodbye gives all VIPs to others, and returns what tells them. With keep, others keep them for
// the next process of this gateway, which forwards on; not where this one has none yet.
func (m *Members) Goodbye(keep bool, now time.Time) *hello.Hello {
	if !m.gone {
		m.keep = keep && m.config.Return > 0 && !m.joining()
	}
	m.gone = true
	m.decide()
	return m.say(m.out.take(true), now)
}

// say returns a hello with a part of the list.
func (m *Members) say(part int, now time.Time) *hello.Hello {
	o := &m.out
	o.now = false
	o.sequence++
	h := &hello.Hello{Name: m.config.Name, Incarnation: m.config.Incarnation, Sequence: o.sequence,
		Nonce: m.nonces[len(m.nonces)-1], Joining: m.joining(), Goodbye: m.gone && !m.keep,
		Returning: m.gone && m.keep, Table: o.table,
		Part: uint16(part), Parts: uint16(len(o.parts)), VIPs: o.parts[part].entries}
	for _, other := range m.others {
		if now.Before(other.told.Add(m.silence())) {
			h.Heard = append(h.Heard, other.nonce)
		}
	}
	return h
}
