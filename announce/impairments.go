package announce

import (
	"net/netip"
	"time"

	"sluice.dev/sluice/announce/pulse"
)

// Times of Impairments.
const (
	// impairedAfter is how long a VIP must be impaired before other gateways are preferred, and how
	// long it must be unimpaired before a shorter impairment is forgotten.
	impairedAfter = time.Second
	// recoverAfter is how long a VIP must be unimpaired before the impairment ends. It doubles with
	// each impairment that begins within resetAfter of the end of the last one, up to maxRecover.
	// So an attacker who can make a check fail changes a route twice in 11 s at first, and soon
	// only twice in 5 minutes.
	recoverAfter = 10 * time.Second
	maxRecover   = 5 * time.Minute
	resetAfter   = 10 * time.Minute
)

// Impairments decides for which VIPs other gateways should be preferred, from the reach that the
// gateway reports, and damps flapping. The zero value has none.
type Impairments struct {
	vips map[netip.Addr]*impairment
	node string // why all VIPs are impaired; empty: they are not
}

// impairment is the state of one VIP that is impaired, or was recently.
type impairment struct {
	why      string    // last reported reason
	reported bool      // the gateway reports it now
	changed  time.Time // when reported changed last
	began    time.Time // first report of an impairment that is not in force yet
	inForce  bool
	wait     time.Duration // how long the VIP must be unimpaired before the impairment ends
	ended    time.Time     // end of the last impairment in force
	next     time.Time     // when inForce changes without a new report; zero: never
}

// Update takes the VIPs as the gateway reports them, and node, the reason why all of them are
// impaired (empty: none). It returns the reasons of the impairments in force by VIP, and when they
// change without a new report; zero: never.
func (p *Impairments) Update(vips []pulse.VIP, node string, now time.Time) (inForce map[netip.Addr]string,
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

// UpdateSome is Update if only the VIPs with the addresses some can have changed since the last
// call. It looks at these VIPs and at impaired or recently impaired ones. differ has the addresses
// for which inForce changed.
func (p *Impairments) UpdateSome(vips []pulse.VIP, some []netip.Addr, now time.Time) (inForce map[netip.Addr]string,
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

// one takes the report about one VIP.
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
		m = &impairment{wait: recoverAfter}
		if p.vips == nil {
			p.vips = map[netip.Addr]*impairment{}
		}
		p.vips[v.Address] = m
	}
	m.see(why, now)
}

// result returns the impairments in force and when that changes, and drops forgotten ones.
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

// see takes the reason why a VIP is impaired; empty: it is not.
func (m *impairment) see(why string, now time.Time) {
	m.next = time.Time{}
	if reported := why != ""; reported != m.reported {
		if reported && !m.inForce && (m.began.IsZero() || now.Sub(m.changed) >= impairedAfter) {
			m.began = now
		}
		m.reported, m.changed = reported, now
	}
	if m.reported {
		m.why = why
	}
	switch {
	case m.reported && !m.inForce:
		if next := m.began.Add(impairedAfter); now.Before(next) {
			m.next = next
			return
		}
		if !m.ended.IsZero() {
			m.wait = min(2*m.wait, maxRecover)
		}
		m.inForce, m.began = true, time.Time{}
	case !m.reported && m.inForce:
		if next := m.changed.Add(m.wait); now.Before(next) {
			m.next = next
			return
		}
		m.inForce, m.ended = false, now
	}
}

// forgotten reports whether a VIP has been unimpaired for so long that its history can be dropped.
func (m *impairment) forgotten(now time.Time) bool {
	return !m.reported && !m.inForce && now.Sub(m.changed) >= impairedAfter &&
		(m.ended.IsZero() || now.Sub(m.ended) >= resetAfter)
}
