package fastpath_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// flood sends 10 pings per millisecond from unused addresses of a link: as many answers wait for
// their next hops.
type flood struct {
	*lab
	n int
}

func (f *flood) invented() string {
	f.n++
	return netip.AddrFrom4([4]byte{10, byte(64 + f.n>>16&63), byte(f.n >> 8), byte(f.n)}).String()
}

func (f *flood) millisecond() {
	for range 10 {
		f.workers[0].nic.Inject(headertest.Echo(f.invented(), vip4, 1, 1, false).Bytes())
	}
	f.step(time.Millisecond)
}

// TestStepDisplacesBoundedly: if the queue of packets that wait for next hops is full, a step
// searches it for no more packets than its budget allows, and drops the others.
func TestStepDisplacesBoundedly(t *testing.T) {
	const room, budget, arrive = 32, 16, 200
	l := newLab(t, labConfig{})
	view := *l.hops.View()
	view.Routes = view.Routes.InsertPersist(prefix("10.64.0.0/10"), nexthop.Route{Kind: nexthop.OnLink})
	l.hops.Publish(&view)
	f := &flood{lab: l}
	for range arrive {
		l.inject(headertest.Echo(f.invented(), vip4, 1, 1, false))
	}
	l.step(time.Millisecond)
	got := l.drops()
	if got["neighbour_displaced"] != budget || got["neighbour_queue_full"] != arrive-room-budget {
		t.Errorf("%v, want %d displaced, and the others dropped", got, budget)
	}
	f.millisecond()
	if n := l.drops()["neighbour_displaced"]; n != budget+10 {
		t.Errorf("%d displaced after the next step, want %d", n, budget+10)
	}
}

// TestKnownNeighboursFirst: while 10,000 packets a second wait for unused destinations, a backend's
// neighbour entry expires. A packet of an established flow waits for the entry and then leaves, and
// so does a packet that opens a flow. The control loop takes one request of each kind per
// millisecond.
func TestKnownNeighboursFirst(t *testing.T) {
	l := newLab(t, labConfig{edit: func(b *services.Builder) {
		serve(b, 10, vip4, 99, header.ProtoTCP, "10.0.9.1", 99, false)
	}})
	f := &flood{lab: l}
	const hopOfBackend nexthop.ID = 3
	hop := nexthop.Hop{Kind: nexthop.OnLink, Ready: true, MTU: 1500, DstMAC: macBackend, SrcMAC: macOurs}
	l.hops.SetHop(hopOfBackend, &hop)
	view := *l.hops.View()
	resolved := nexthop.Route{Hop: hopOfBackend, Kind: nexthop.OnLink}
	view.Routes = view.Routes.InsertPersist(prefix("10.0.9.1/32"), resolved)
	view.Routes = view.Routes.InsertPersist(prefix("10.64.0.0/10"), nexthop.Route{Kind: nexthop.OnLink})
	l.hops.Publish(&view)

	client := join(client4, 40000)
	_, snat, end := l.open(client, join(vip4, 99))
	l.send(0, headertest.TCP(end, snat, headertest.SYN|headertest.ACK))
	l.out(l.workers[0].nic)
	l.send(0, headertest.TCP(client, join(vip4, 99), headertest.ACK))
	l.out(l.workers[0].nic)
	l.send(0, headertest.TCP(end, snat, headertest.ACK))
	l.out(l.workers[0].nic)

	for range 300 {
		f.millisecond()
	}
	for _, c := range []struct {
		name string
		p    *headertest.Packet
	}{
		{"established flow", headertest.TCP(client, join(vip4, 99), headertest.ACK)},
		{"new flow", headertest.TCP(join(client4, 40001), join(vip4, 99), headertest.SYN)},
	} {
		failed := hop
		failed.Ready = false
		l.hops.SetHop(hopOfBackend, &failed)
		l.workers[0].nic.Inject(c.p.Bytes())
		leaves := false
		for range 900 {
			f.millisecond()
			if l.answer(addr("10.0.9.1")) {
				l.hops.SetHop(hopOfBackend, &hop)
			}
			for {
				frame, ok := l.workers[0].nic.Take(nil)
				if !ok {
					break
				}
				leaves = leaves || [6]byte(frame[:6]) == macBackend
			}
		}
		if !leaves {
			t.Errorf("%s: its packet does not leave", c.name)
		}
	}
	d := l.drops()
	if d[reason.NeighbourQueueFull.String()] != 0 || d[reason.NeighbourDisplaced.String()] == 0 {
		t.Errorf("drops %v", d)
	}
}

// answer simulates a millisecond of the control loop: it takes one request of each kind, and
// reports whether one was for address a.
func (l *lab) answer(a header.Addr) (found bool) {
	for _, requests := range []<-chan nexthop.Request{l.hops.FirstRequests(), l.hops.Requests()} {
		select {
		case r := <-requests:
			found = found || r.Addr == a
		default:
		}
	}
	return found
}

// TestLargestPrefixIsEvicted: unproven packets of a flooded prefix do not take the room of other
// prefixes.
func TestLargestPrefixIsEvicted(t *testing.T) {
	l := newLab(t, labConfig{})
	f := &flood{lab: l}
	view := *l.hops.View()
	view.Routes = view.Routes.InsertPersist(prefix("10.64.0.0/10"), nexthop.Route{Kind: nexthop.OnLink})
	l.hops.Publish(&view)
	l.send(0, headertest.Echo("10.0.9.9", vip4, 1, 1, false)) // of 10.0.9.0/24: on a link and unresolved
	for range 20 {
		f.millisecond()
	}
	l.resolve("10.0.9.9")
	l.step(2 * time.Millisecond)
	frame, _ := l.out(l.workers[0].nic)
	if [6]byte(frame[:6]) != macBackend {
		t.Errorf("sent to %x", frame[:6])
	}
}

// TestEstablishedWaitsBesideForged: the neighbour entry of a client has expired, and the backend's
// answers to forged SYNs from the client's address take all places of that next hop. A packet of
// the client's established connection displaces one of them.
func TestEstablishedWaitsBesideForged(t *testing.T) {
	l := newLab(t, labConfig{})
	const client, hopOfClient = "10.0.9.9", nexthop.ID(3) // on a link
	hop := nexthop.Hop{Kind: nexthop.OnLink, Ready: true, MTU: 1500, DstMAC: macBackend, SrcMAC: macOurs}
	l.hops.SetHop(hopOfClient, &hop)
	view := *l.hops.View()
	onLink := nexthop.Route{Hop: hopOfClient, Kind: nexthop.OnLink}
	view.Routes = view.Routes.InsertPersist(prefix(client+"/32"), onLink)
	l.hops.Publish(&view)
	g := l.workers[0]
	_, snat, end := l.open(join(client, 40000), join(vip4, 80))
	l.send(0, headertest.TCP(end, snat, headertest.SYN|headertest.ACK))
	l.out(g.nic)
	l.send(0, headertest.TCP(join(client, 40000), join(vip4, 80), headertest.ACK))
	l.out(g.nic)
	failed := hop
	failed.Ready = false
	l.hops.SetHop(hopOfClient, &failed)
	for n := range uint16(40) {
		_, forged, from := l.open(join(client, 50000+n), join(vip4, 80))
		l.send(0, headertest.TCP(from, forged, headertest.SYN|headertest.ACK))
	}
	before := len(l.hops.FirstRequests())
	data := headertest.TCP(end, snat, headertest.ACK)
	data.Payload = []byte("response")
	l.send(0, data)
	if n := len(l.hops.FirstRequests()); n != before+1 {
		t.Errorf("%d first requests before, and %d with the established flow's", before, n)
	}
	l.hops.SetHop(hopOfClient, &hop)
	l.step(2 * time.Millisecond)
	for {
		frame, ok := g.nic.Take(nil)
		if !ok {
			t.Fatalf("the packet of the established flow does not leave: drops %v", l.drops())
		}
		if strings.HasSuffix(string(frame), "response") {
			return
		}
	}
}
