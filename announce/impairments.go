package announce

import (
	"net/netip"
	"time"

	"sluice.dev/sluice/announce/pulse"
)

// Times of Impairments.
const (
	// impairedAfter is how long a VIP must be impaired before others are preferred, and how long it
	// must be well before an impairment that was shorter is forgotten.
	impairedAfter = time.Second
	// wellAfter is how long a VIP must be well before it is announced as before. It doubles with
	// each impairment that begins within steadyAfter of the end of the last one, up to wellAtMost.
	// So whoever can make a check fail changes a route twice in 11 s at first, and soon twice in 5
	// minutes.
	wellAfter   = 10 * time.Second
	wellAtMost  = 5 * time.Minute
	steadyAfter = 10 * time.Minute
)

// Impairments decides for which VIPs other gateways are to be preferred, from what the gateway says
// of its reach, and damps what comes and goes. The zero value knows none.
type Impairments struct {
	vips map[netip.Addr]*impairment
	node string // why all are impaired
}

// impairment is one VIP that is impaired, or was lately.
type impairment struct {
	why     string    // said last
	said    bool      // now
	changed time.Time // when said changed last
	began   time.Time // of an impairment that is not in force: when it was said first
	inForce bool
	wait    time.Duration // how long it must be well before it is not in force any more
	ended   time.Time     // when it was in force last
	next    time.Time     // when inForce changes though nothing else is said; zero: never
}

// See takes what the gateway says of its VIPs, and node, why all of them are impaired: empty if
// they are not. It returns the impairments in force, by VIP, with why, and when that changes though
// nothing else is said; zero: never.
func (p *Impairments) See(vips []pulse.VIP, node string, now time.Time) (inForce map[netip.Addr]string,
	next time.Time,
) {
	p.node = node
	for vip := range p.vips {
		if pulse.Find(vips, vip) == nil {
			delete(p.vips, vip)
		}
	}
	for i := range vips {
		p.one(&vips[i], now)
	}
	return p.result(now)
}

// SeeSome is See where nothing but the VIPs with some addresses can have changed since the last
// call. It looks at these and at those that are impaired, or were lately, and returns also the
// addresses for which inForce differs from that of before.
func (p *Impairments) SeeSome(vips []pulse.VIP, some []netip.Addr, now time.Time) (inForce map[netip.Addr]string,
	next time.Time, differ []netip.Addr,
) {
	before := map[netip.Addr]string{}
	look := map[netip.Addr]bool{}
	for vip, m := range p.vips {
		look[vip] = true
		if m.inForce {
			before[vip] = m.why
		}
	}
	for _, vip := range some {
		look[vip] = true
	}
	for vip := range look {
		if v := pulse.Find(vips, vip); v != nil {
			p.one(v, now)
		} else {
			delete(p.vips, vip)
		}
	}
	inForce, next = p.result(now)
	for vip := range look {
		was, there := before[vip]
		if is, still := inForce[vip]; there != still || was != is {
			differ = append(differ, vip)
		}
	}
	return inForce, next, differ
}

// one takes what the gateway says of one VIP.
func (p *Impairments) one(v *pulse.VIP, now time.Time) {
	why := p.node
	for j := range v.Services {
		if s := &v.Services[j]; why == "" && s.Impaired != "" {
			why = s.Namespace + "/" + s.Name + ": " + s.Impaired
		}
	}
	m := p.vips[v.Address]
	if m == nil && why == "" {
		return
	}
	if m == nil {
		m = &impairment{wait: wellAfter}
		if p.vips == nil {
			p.vips = map[netip.Addr]*impairment{}
		}
		p.vips[v.Address] = m
	}
	m.see(why, now)
}

// result returns the impairments in force, and when that changes, and forgets what need not be
// known any more.
func (p *Impairments) result(now time.Time) (inForce map[netip.Addr]string, next time.Time) {
	inForce = map[netip.Addr]string{}
	for vip, m := range p.vips {
		next = earliest(next, m.next)
		if m.inForce {
			inForce[vip] = m.why
		}
		if m.forgotten(now) {
			delete(p.vips, vip)
		}
	}
	return inForce, next
}

// see takes why a VIP is impaired; empty: it is not.
func (m *impairment) see(why string, now time.Time) {
	m.next = time.Time{}
	if said := why != ""; said != m.said {
		if said && !m.inForce && (m.began.IsZero() || now.Sub(m.changed) >= impairedAfter) {
			m.began = now
		}
		m.said, m.changed = said, now
	}
	if m.said {
		m.why = why
	}
	switch {
	case m.said && !m.inForce:
		if next := m.began.Add(impairedAfter); now.Before(next) {
			m.next = next
			return
		}
		if !m.ended.IsZero() {
			m.wait = min(2*m.wait, wellAtMost)
		}
		m.inForce, m.began = true, time.Time{}
	case !m.said && m.inForce:
		if next := m.changed.Add(m.wait); now.Before(next) {
			m.next = next
			return
		}
		m.inForce, m.ended = false, now
	}
}

// forgotten reports whether a VIP has been well for so long that nothing need be known of it.
func (m *impairment) forgotten(now time.Time) bool {
	return !m.said && !m.inForce && now.Sub(m.changed) >= impairedAfter &&
		(m.ended.IsZero() || now.Sub(m.ended) >= steadyAfter)
}
