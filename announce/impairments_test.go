package announce

import (
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/announce/pulse"
)

// TestImpairments: the gateway reports one VIP as impaired or not, in steps of 100 ms. Each case
// has how often the route changes, and for how long other gateways are preferred.
func TestImpairments(t *testing.T) {
	t.Parallel()
	const step, s = 100 * time.Millisecond, time.Second
	vip := netip.MustParseAddr("192.0.2.1")
	for name, c := range map[string]struct {
		during time.Duration
		// reported returns the reason why the VIP, or the node, is impaired after a time.
		reported    func(at time.Duration) (service, node string)
		changes     int // of the route
		least, most time.Duration
		first       time.Duration // first time that others are preferred; 0: never
	}{
		"well":     {during: 60 * s, reported: func(time.Duration) (string, string) { return "", "" }},
		"for ever": {60 * s, func(time.Duration) (string, string) { return "no route", "" }, 1, 59 * s, 59 * s, s},
		"the node": {60 * s, func(time.Duration) (string, string) { return "", "NetworkUnavailable" }, 1, 59 * s,
			59 * s, s},
		"0.9 s of each 10 s": {600 * s, func(at time.Duration) (string, string) {
			return flap(at, 900*time.Millisecond, 10*s), ""
		}, 0, 0, 0, 0},
		"half of each second": {60 * s, func(at time.Duration) (string, string) {
			return flap(at, 500*time.Millisecond, s), ""
		}, 1, 58 * s, 59 * s, s},
		"for 5 s": {60 * s, func(at time.Duration) (string, string) { return flap(at, 5*s, 60*s), "" }, 2, 14 * s,
			14 * s, s},
		"5 s of each 10 s": {600 * s, func(at time.Duration) (string, string) { return flap(at, 5*s, 10*s), "" }, 1,
			598 * s, 599 * s, s},
		// Without the doubling the route would change 92 times.
		"5 s of each 26 s": {1200 * s, func(at time.Duration) (string, string) { return flap(at, 5*s, 26*s), "" }, 5,
			1150 * s, 1190 * s, s},
		"5 s of each hour": {4 * time.Hour, func(at time.Duration) (string, string) {
			return flap(at, 5*s, time.Hour), ""
		}, 8, 56 * s, 56 * s, s},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p Impairments
			begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			was, changes, total, first, next := false, 0, time.Duration(0), time.Duration(0), time.Time{}
			var last string
			for at := time.Duration(0); at < c.during; at += step {
				service, node := c.reported(at)
				v := []pulse.VIP{{Address: vip, Services: []pulse.Service{{Impaired: service}}}}
				before := next
				var inForce map[netip.Addr]string
				inForce, next = p.Update(v, node, begin.Add(at))
				why, is := inForce[vip]
				if is != was {
					if changes++; changes == 1 {
						first = at
					}
					if last == service+node && !before.Equal(begin.Add(at)) {
						t.Errorf("it changes after %v, and was to be looked at at %v", at, before)
					}
				}
				if is {
					if total += step; why == "" {
						t.Fatal("nothing is reported")
					}
				}
				was, last = is, service+node
			}
			if changes != c.changes || total < c.least || total > c.most || first != c.first {
				t.Errorf("%d changes, the first after %v, %v in force; want %d, %v, %v to %v", changes, first, total,
					c.changes, c.first, c.least, c.most)
			}
			if p.Update(nil, "", begin); len(p.vips) != 0 {
				t.Errorf("of VIPs that are gone is left: %v", p.vips)
			}
		})
	}
}

// flap returns why a VIP is impaired for the first part of each period.
func flap(at, part, period time.Duration) string {
	if at%period < part {
		return "no route"
	}
	return ""
}
