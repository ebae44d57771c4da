package announce

import (
	"net/netip"
	"time"

	"sluice.dev/sluice/control/pulse"
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
}

// See takes what the gateway says of its VIPs, and node, why all of them are impaired: empty if
// they are not. It returns the impairments in force, by VIP, with why, and when that changes though
// nothing else is said; zero: never.
func (p *Impairments) See(vips []pulse.VIP, node string, now time.Time) (inForce map[netip.Addr]string,
	next time.Time,
) {
	inForce = map[netip.Addr]string{}
	served := make(map[netip.Addr]bool, len(p.vips))
	for i := range vips {
		v := &vips[i]
		why := node
		for j := range v.Services {
			if s := &v.Services[j]; why == "" && s.Impaired != "" {
				why = s.Namespace + "/" + s.Name + ": " + s.Impaired
			}
		}
		m := p.vips[v.Address]
		if m == nil && why == "" {
			continue
		}
		if m == nil {
			m = &impairment{wait: wellAfter}
			if p.vips == nil {
				p.vips = map[netip.Addr]*impairment{}
			}
			p.vips[v.Address] = m
		}
		served[v.Address] = true
		next = earliest(next, m.see(why, now))
		if m.inForce {
			inForce[v.Address] = m.why
		}
		if m.forgotten(now) {
			delete(p.vips, v.Address)
		}
	}
	for vip := range p.vips {
		if !served[vip] {
			delete(p.vips, vip)
		}
	}
	return inForce, next
}

// see takes why a VIP is impaired; empty: it is not. It returns when inForce changes though nothing
// else is said; zero: never.
func (m *impairment) see(why string, now time.Time) (next time.Time) {
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
		if next = m.began.Add(impairedAfter); now.Before(next) {
			return next
		}
		if !m.ended.IsZero() {
			m.wait = min(2*m.wait, wellAtMost)
		}
		m.inForce, m.began = true, time.Time{}
	case !m.said && m.inForce:
		if next = m.changed.Add(m.wait); now.Before(next) {
			return next
		}
		m.inForce, m.ended = false, now
	}
	return time.Time{}
}

// forgotten reports whether a VIP has been well for so long that nothing need be known of it.
func (m *impairment) forgotten(now time.Time) bool {
	return !m.said && !m.inForce && now.Sub(m.changed) >= impairedAfter &&
		(m.ended.IsZero() || now.Sub(m.ended) >= steadyAfter)
}
