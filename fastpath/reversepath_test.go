package fastpath_test

import (
	"fmt"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// TestStrictReversePath: a packet with a backend's source address is accepted as its reply only if
// it arrives from the interface and VLAN that packets to the backend leave by. Without the setting
// it is accepted from any.
func TestStrictReversePath(t *testing.T) {
	here, elsewhere := 0, 1
	const vlan = 20 | 3<<13 // with a priority, which is ignored
	for _, c := range []struct {
		name   string
		nic    *int // strict, if not nil
		kernel bool // the backend is behind the kernel
		tags   []uint16
		host   bool // the reply comes from the host link
		ok     bool
	}{
		{"the same VLAN", &here, false, []uint16{20}, false, true},
		{"with a priority", &here, false, []uint16{vlan}, false, true},
		{"with a tag of a priority alone", &here, false, []uint16{3 << 13, 20}, false, true},
		{"the clients' VLAN", &here, false, []uint16{10}, false, false},
		{"no VLAN", &here, false, nil, false, false},
		{"a VLAN in the VLAN", &here, false, []uint16{20, 20}, false, false},
		{"another interface", &elsewhere, false, []uint16{20}, false, false},
		{"the host link", &here, false, []uint16{20}, true, false},
		{"anywhere, not strict", nil, false, nil, false, true},
		{"behind the kernel", &here, true, nil, true, true},
		{"behind the kernel, from outside", &here, true, nil, false, false},
	} {
		protos := []uint8{header.ProtoTCP, header.ProtoUDP}
		if c.kernel { // the lab's backend on the node has only a TCP port
			protos = protos[:1]
		}
		for _, proto := range protos {
			t.Run(fmt.Sprintf("%s, protocol %d", c.name, proto), func(t *testing.T) {
				l := newLab(t, labConfig{reversePath: c.nic})
				g := l.workers[0]
				hop := *l.hops.Hop(hopBackend)
				hop.VLANs, hop.VLAN[0] = 1, nexthop.Tag{TPID: header.EtherTypeVLAN, TCI: 20}
				l.hops.SetHop(hopBackend, &hop)
				out, vip := g.nic, join(vip4, 80)
				switch {
				case c.kernel:
					out, vip = g.host, join(localVIP, 80)
				case proto == header.ProtoUDP:
					vip = join(vip4, 53)
				}
				l.send(0, packet(proto, join(client4, 40000), vip, headertest.SYN))
				_, p := l.out(out)
				snat, end := ends(&p.Tuple)
				before := l.state()

				reply := packet(proto, end.String(), snat.String(), headertest.SYN|headertest.ACK)
				reply.VLAN = c.tags
				link := g.nic
				if c.host {
					link = g.host
				}
				link.Inject(reply.Bytes())
				l.step(1)
				_, sent := g.nic.Take(nil)
				if after := l.state(); sent != c.ok || (after != before) != c.ok {
					t.Errorf("reply forwarded %v, state %v after %v; want forwarded %v; drops %v", sent, after, before,
						c.ok, l.drops())
				}
				if !c.ok {
					l.wantDrop(reason.ReversePath, 1)
				}
			})
		}
	}
}

// TestForgedBackendSide: with a strict reverse path, packets from the clients' side with a
// backend's source address establish no half-open flow, and change none, also in a group.
func TestForgedBackendSide(t *testing.T) {
	elsewhere := 1
	c := labConfig{reversePath: &elsewhere, frames: 4096, ring: 1024}
	testForgedBackendSide(t, newLab(t, c))
	l, _ := groupLab(t, c)
	testForgedBackendSide(t, l)
}

func testForgedBackendSide(t *testing.T, l *lab) {
	const flows = 400
	g := l.workers[0]
	for n := range uint16(flows) {
		l.send(0, headertest.TCP(join("198.18.0.1", 10000+n), join(vip4, 80), headertest.SYN))
		_, p := l.out(g.nic)
		snat, end := ends(&p.Tuple)
		forged := headertest.TCP(end.String(), snat.String(), headertest.SYN|headertest.ACK)
		data := headertest.TCP(end.String(), snat.String(), headertest.ACK)
		data.Seq, data.Payload = forged.Seq+1, []byte("x")
		l.send(0, forged, data)
	}
	c := l.table.Counts()
	if n := l.pastHalfOpen(); n != 0 || c.States[flowtable.SynSeen] != flows {
		t.Errorf("%d flows past half-open, %v", n, c.States)
	}
	l.wantDrop(reason.ReversePath, 2*flows)
}

// TestWaitingAnswerIsHandedOver: the next process of a hand-over knows the link that a SYN-ACK came
// from that waits for copies, and forwards it.
func TestWaitingAnswerIsHandedOver(t *testing.T) {
	here := 0
	l, _ := groupLab(t, labConfig{reversePath: &here})
	g := l.workers[0]
	g.config.Interfaces[g.config.Host] = 9
	l.openBy(1000)
	r := g.Pause()
	next := l.successor(g)
	if err := next.Assume(r, ownFrames(g, &r)); err != nil {
		t.Fatal(err)
	}
	l.workers[0] = next
	next.host.Inject(headertest.UDP(join("10.0.9.9", 1), join(vip4, 1), "the kernel's").Bytes())
	for range 2 {
		l.step(2 * time.Millisecond)
	}
	l.out(next.nic) // the kernel's
	_, p := l.out(next.nic)
	l.wantTuple(&p, join(vip4, 80), join(client4, 1000))
}

// TestWaitingAnswersOfTwoLinks: SYN-ACKs that are handed over keep the links that they came from,
// also if they came from several.
func TestWaitingAnswersOfTwoLinks(t *testing.T) {
	const otherVIP, otherBackend, otherHop, each = "203.0.113.98", "10.0.7.1", nexthop.ID(3), 2
	here := 0
	l, _ := groupLab(t, labConfig{reversePath: &here, other: true, edit: func(b *services.Builder) {
		serve(b, 20, otherVIP, 80, header.ProtoTCP, otherBackend, 8080, false)
	}})
	l.hops.SetHop(otherHop, &nexthop.Hop{Kind: nexthop.OnLink, Ready: true, MTU: 1500, Link: 1, DstMAC: macBackend,
		SrcMAC: macOurs})
	view := *l.hops.View()
	view.Routes = view.Routes.InsertPersist(prefix(otherBackend+"/32"), nexthop.Route{Hop: otherHop,
		Kind: nexthop.OnLink})
	l.hops.Publish(&view)
	g := l.workers[0]
	for n := range uint16(each) { // they alternate
		l.openBy(1000 + n)
		l.send(0, headertest.TCP(join(client4, 2000+n), join(otherVIP, 80), headertest.SYN))
		_, p := l.out(g.other)
		from, to := ends(&p.Tuple)
		g.other.Inject(headertest.TCP(to.String(), from.String(), headertest.SYN|headertest.ACK).Bytes())
		l.step(time.Microsecond)
	}
	r := g.Pause()
	if len(r.Parked) != 2*each {
		t.Fatalf("%d SYN-ACKs are handed over, want %d", len(r.Parked), 2*each)
	}
	next := l.successor(g)
	if err := next.Assume(r, ownFrames(g, &r)); err != nil {
		t.Fatal(err)
	}
	l.workers[0] = next
	for range 3 {
		l.step(2 * time.Millisecond)
	}
	sent := map[string]int{}
	for range 2 * each {
		_, p := l.out(next.nic)
		src, _ := ends(&p.Tuple)
		sent[src.String()]++
	}
	if sent[join(vip4, 80)] != each || sent[join(otherVIP, 80)] != each {
		t.Errorf("sent from %v, want %d of each", sent, each)
	}
}

// TestForgedRepliesOnStandingFlows: with a strict reverse path, packets from another interface with
// a backend's source address do not reach the client of an established connection either.
func TestForgedRepliesOnStandingFlows(t *testing.T) {
	for _, proto := range []uint8{header.ProtoUDP, header.ProtoTCP} {
		here := 0
		l := newLab(t, labConfig{reversePath: &here})
		g, client, vip := l.workers[0], join(client4, 40000), join(vip4, 53)
		if proto == header.ProtoTCP {
			vip = join(vip4, 80)
		}
		snat, end := l.begins(0, proto, client, vip)
		l.answers(0, proto, client, vip, snat.String(), end.String())
		reply := packet(proto, end.String(), snat.String(), headertest.ACK)
		l.send(0, reply)
		l.out(g.nic)
		hop := *l.hops.Hop(hopBackend)
		hop.Link = 3 // from now on only clients are behind the NIC
		l.hops.SetHop(hopBackend, &hop)
		l.send(0, reply)
		l.nothing(g.nic)
		l.wantDrop(reason.ReversePath, 1)
	}
}

// TestForgedRepliesOfUnknownNeighbour: a backend whose neighbour is not resolved has received no
// packet, so a reply with its address is forged.
func TestForgedRepliesOfUnknownNeighbour(t *testing.T) {
	elsewhere := 1
	const flows, ports, vip, dead = 40, 500, "203.0.113.99", "10.0.9.5"
	l := newLab(t, labConfig{reversePath: &elsewhere, snat: services.PortRange{First: 20000, Count: ports},
		edit: func(b *services.Builder) { serve(b, 20, vip, 80, header.ProtoTCP, dead, 8080, false) }})
	for n := range uint16(flows) {
		l.send(0, headertest.TCP(join("198.18.0.1", 10000+n), join(vip, 80), headertest.SYN))
	}
	for n := range uint16(ports) {
		forged := headertest.TCP(join(dead, 8080), join(snat4, 20000+n), headertest.SYN|headertest.ACK)
		data := headertest.TCP(join(dead, 8080), join(snat4, 20000+n), headertest.ACK)
		data.Seq, data.Payload = forged.Seq+1, []byte("x")
		l.send(0, forged, data)
	}
	if n, half := l.pastHalfOpen(), l.table.Counts().HalfOpen; n != 0 || half == 0 {
		t.Errorf("%d flows past half-open, %d half-open", n, half)
	}
}
