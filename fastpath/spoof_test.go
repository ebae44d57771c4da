package fastpath_test

import (
	"fmt"
	"testing"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/test/bed/memlink"
)

// echoAll simulates the network around a gateway: backends echo every packet, and the router sends
// packets for a VIP back to the gateway. It runs at most rounds rounds, and returns how many
// packets backends got.
func (l *lab) echoAll(link *memlink.Link, rounds int) (served int) {
	l.t.Helper()
	for range rounds {
		frame, ok := link.Take(nil)
		if !ok {
			return served
		}
		var p header.Packet
		if r := header.Parse(frame, &p); r != reason.None {
			l.t.Fatal(r)
		}
		src, dst := ends(&p.Tuple)
		if l.hops.View().Lookup(&p.Tuple.Dst).Hop == hopBackend {
			served++
			src, dst = dst, src
		}
		l.send(0, headertest.UDP(src.String(), dst.String(), "echo"))
	}
	l.t.Fatalf("packets still circle after %d rounds, in which backends got %d", rounds, served)
	return served
}

// TestServicesDoNotAnswerEachOther: a datagram to one service that answers every packet, with
// another such service as its forged source, would make the two answer each other endlessly
// (CVE-2024-2169). So a frontend is not a valid source.
func TestServicesDoNotAnswerEachOther(t *testing.T) {
	for _, kind := range []services.FrontendKind{services.LoadBalancer, services.ExternalIP, services.ClusterIP} {
		t.Run(kind.String(), func(t *testing.T) {
			l := newLab(t, labConfig{edit: func(b *services.Builder) {
				for i, end := range []string{backend4, second4} {
					id := services.ServiceID(30 + i)
					to := services.Rule{Set: set(b, id, uint32(id), header.ProtoUDP, end)}
					rules(b, id, kind, fmt.Sprintf("203.0.113.6%d", i), 7, header.ProtoUDP, to, to)
				}
			}})
			one, two := join("203.0.113.60", 7), join("203.0.113.61", 7)
			l.send(0, headertest.UDP(one, two, "forged"))
			if served := l.echoAll(l.workers[0].nic, 100); served != 0 {
				t.Errorf("backends got %d packets of a forged one", served)
			}
			l.wantDrop(reason.SpoofedSource, 1)
			e := l.explainer()
			if x := e.Explain(tuple(header.ProtoUDP, one, two), true, flowtable.Time(l.now)); x.Verdict.Reason !=
				reason.SpoofedSource {
				t.Errorf("explained as %v", x.Verdict)
			}
			// Hairpin: a backend may be a client of a service, and so may a VIP with a port that is
			// no frontend's.
			for _, client := range []string{join(second4, 7), join("203.0.113.61", 40000)} {
				l.send(0, headertest.UDP(client, one, "query"))
				_, p := l.out(l.workers[0].nic)
				l.wantTuple(&p, "", join(backend4, 8080))
			}
			l.wantDrop(reason.SpoofedSource, 1)
		})
	}
}

// TestFrontendOpensNothing: a frontend is not a valid source of a connection either.
func TestFrontendOpensNothing(t *testing.T) {
	l := newLab(t, labConfig{})
	l.send(0, headertest.TCP(join(keepVIP, 80), join(vip4, 80), headertest.SYN),
		headertest.TCP(join(keepVIP, 80), join(vip4, 80), headertest.ACK))
	l.nothing(l.workers[0].nic, l.workers[0].host)
	l.wantDrop(reason.SpoofedSource, 2)
}

// TestExternalIPKeepsNobodyAway: the author of a Service may list a client's address and ports as
// external IPs. That blocks the client from Services of the author's namespace, but not from others
// (CVE-2020-8554).
func TestExternalIPKeepsNobodyAway(t *testing.T) {
	client := join("198.51.100.7", 40000)
	for kind, want := range map[services.FrontendKind][2]reason.Drop{
		services.ExternalIP:   {reason.None, reason.SpoofedSource},
		services.LoadBalancer: {reason.SpoofedSource, reason.SpoofedSource}, // allocated: no client has it
	} {
		for i, namespace := range []string{"tenant", "default"} {
			t.Run(fmt.Sprint(kind, " of ", namespace), func(t *testing.T) {
				l := newLab(t, labConfig{edit: func(b *services.Builder) {
					to := services.Rule{Set: set(b, 30, 30, header.ProtoTCP, backend4)}
					f := *rules(b, 30, kind, "198.51.100.7", 40000, header.ProtoTCP, to, to)
					service := *f.Service
					service.Namespace, f.Service = namespace, &service
					b.SetService(f.Service)
					b.SetFrontend(&f)
				}})
				l.send(0, headertest.TCP(client, join(vip4, 80), headertest.SYN))
				if want[i] != reason.None {
					l.nothing(l.workers[0].nic, l.workers[0].host)
					l.wantDrop(want[i], 1)
					return
				}
				_, p := l.out(l.workers[0].nic)
				l.wantTuple(&p, "", join(backend4, 8080))
			})
		}
	}
}

// TestNoReplyIntoTunnel: a datagram with a node's address and the tunnel's port as its forged
// source would make a Service answer with an address of the gateway, as a packet of the tunnel.
func TestNoReplyIntoTunnel(t *testing.T) {
	l := newLab(t, labConfig{edit: func(b *services.Builder) {
		b.Settings().TunnelPort = labTunnel.Port
		for i, vip := range []string{"0.0.0.0", snat4, vip4} {
			id := services.ServiceID(30 + i)
			to := services.Rule{Set: set(b, id, uint32(id), header.ProtoUDP, backend4)}
			rules(b, id, services.ExternalIP, vip, 30081, header.ProtoUDP, to, to)
		}
	}})
	for i, tt := range []struct {
		from, to string
		dropped  bool
	}{
		{join(node1, labTunnel.Port), join(node4, 30081), true},
		{join(node1, labTunnel.Port), join(snat4, 30081), true},
		{join(node1, labTunnel.Port), join(vip4, 30081), false},
		{join(node1, labTunnel.Port+1), join(node4, 30081), false},
	} {
		l.send(0, headertest.UDP(tt.from, tt.to, "forged"))
		if tt.dropped {
			l.nothing(l.workers[0].nic, l.workers[0].host)
			l.wantDrop(reason.SpoofedSource, uint64(i+1))
			continue
		}
		_, p := l.out(l.workers[0].nic)
		l.wantTuple(&p, "", join(backend4, 8080))
	}
}

// TestEchoBetweenOurOwn: an echo request from a VIP is answered once, because another node may have
// that address; a request from an address of this node is not answered.
func TestEchoBetweenOurOwn(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	l.send(0, headertest.Echo(keepVIP, vip4, 1, 1, false))
	l.out(g.nic)
	l.send(0, headertest.Echo(vip4, keepVIP, 1, 1, true)) // the router sends the reply back here
	l.out(g.host)
	l.nothing(g.nic, g.host)
	l.send(0, headertest.Echo(node4, vip4, 1, 1, false))
	l.nothing(g.nic, g.host)
	l.wantDrop(reason.SpoofedSource, 1)
}
