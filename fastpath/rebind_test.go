package fastpath_test

import (
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// TestRouteChangeOnThePlainPath: after a change of one route, the next packet of each flow costs
// two lookups but stays on the plain path. Flows of the changed route use the new hop.
func TestRouteChangeOnThePlainPath(t *testing.T) {
	l := newLab(t, labConfig{})
	w := l.workers[0]
	packet := func(port uint16) *headertest.Packet {
		return headertest.UDP(join(client4, port), join(vip4, 53), "x")
	}
	const flows = 20
	for i := range uint16(flows) {
		for range 4 { // the table counts three unanswered datagrams of a flow, which take the slow path
			l.send(0, packet(1000+i))
		}
	}
	w.nic.Loop()
	for _, c := range []struct {
		name string
		edit func(v *nexthop.View)
		mac  byte // change of the last byte of the packets' MAC address; 0: none
	}{
		{"another network's route", func(v *nexthop.View) {
			v.Routes = v.Routes.InsertPersist(prefix("203.0.113.0/24"), nexthop.Route{Hop: 1, Kind: nexthop.OnLink})
		}, 0},
		{"the backend's route", func(v *nexthop.View) {
			hop := *l.hops.Hop(v.Lookup(ptr(addr(backend4))).Hop)
			hop.DstMAC[5] ^= 0x55
			l.hops.SetHop(77, &hop)
			v.Routes = v.Routes.InsertPersist(prefix(backend4+"/32"), nexthop.Route{Hop: 77, Kind: nexthop.OnLink})
		}, 0x55},
	} {
		before := lastMAC(l, packet(1000))
		view := *l.hops.View()
		view.Generation++
		c.edit(&view)
		l.hops.Publish(&view)
		w.Judged()
		for i := range uint16(flows) {
			w.nic.Inject(packet(1000 + i).Bytes())
		}
		l.step(time.Microsecond)
		if p := w.Judged(); p.L3 != 0 {
			t.Errorf("%s: a packet took the slow path: %+v", c.name, p.Tuple)
		}
		for range flows {
			frame, _ := l.out(w.nic)
			if frame[5] != before^c.mac {
				t.Fatalf("%s: sent to a MAC that ends with %#x, want %#x", c.name, frame[5], before^c.mac)
			}
		}
	}
	if n := l.drops(); len(n) != 0 {
		t.Errorf("%v", n)
	}
}

func ptr(a header.Addr) *header.Addr { return &a }

// lastMAC returns the last byte of the MAC that a packet is sent to.
func lastMAC(l *lab, p *headertest.Packet) byte {
	l.send(0, p)
	frame, _ := l.out(l.workers[0].nic)
	return frame[5]
}
