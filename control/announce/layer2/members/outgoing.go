package members

import (
	"time"

	"sluice.dev/sluice/control/announce/layer2/hello"
)

// maxBurst bounds the hellos that are sent at once when the list of VIPs has changed: 16 have 1,900
// IPv4 addresses. The others follow with the next ones.
const maxBurst = 16

// outgoing is what we say of ourselves.
type outgoing struct {
	next     time.Time
	sequence uint64
	table    uint64
	parts    [][]hello.Entry
	part     int // the next one
	now      int // as many hellos are to be sent at once
}

// list replaces the list of VIPs, of which all parts are to be sent.
func (o *outgoing) list(entries []hello.Entry) {
	o.table++
	o.parts, o.part = hello.Split(entries), 0
	o.atOnce(len(o.parts))
}

func (o *outgoing) atOnce(n int) { o.now = min(max(o.now, n), maxBurst) }

// Hellos returns what is to be sent now.
func (m *Members) Hellos(now time.Time) (list []*hello.Hello) {
	n := m.out.now
	m.out.now = 0
	if !now.Before(m.out.next) {
		n = max(n, 1)
		if m.out.next = m.out.next.Add(m.config.Every); !m.out.next.After(now) {
			m.out.next = now.Add(m.config.Every) // what was missed is not made up for
		}
	}
	for range n {
		list = append(list, m.say(now))
	}
	return list
}

// Goodbye gives all VIPs to others, and returns what tells them. With keep, others keep them for
// the next process of this gateway, which forwards on; not where this one has none yet.
func (m *Members) Goodbye(keep bool, now time.Time) *hello.Hello {
	if !m.gone {
		m.keep = keep && m.config.Return > 0 && !m.joining(now)
	}
	m.gone = true
	m.decide(now)
	return m.say(now)
}

func (m *Members) say(now time.Time) *hello.Hello {
	o := &m.out
	o.sequence++
	h := &hello.Hello{Name: m.config.Name, Incarnation: m.config.Incarnation, Sequence: o.sequence,
		Nonce: m.nonces[len(m.nonces)-1], Joining: m.joining(now), Goodbye: m.gone && !m.keep,
		Returning: m.gone && m.keep, Table: o.table,
		Part: uint16(o.part), Parts: uint16(len(o.parts)), VIPs: o.parts[o.part]}
	o.part = (o.part + 1) % len(o.parts)
	for _, other := range m.others {
		if now.Before(other.told.Add(m.silence())) {
			h.Heard = append(h.Heard, other.nonce)
		}
	}
	return h
}
