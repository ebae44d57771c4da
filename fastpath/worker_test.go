package fastpath_test

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

func join(ip string, port uint16) string {
	return netip.AddrPortFrom(netip.MustParseAddr(ip), port).String()
}

func TestForwardBothWays(t *testing.T) {
	tests := []struct {
		name                   string
		client, vip, snat, end string
		proto                  uint8
	}{
		{"tcp4", join(client4, 40000), join(vip4, 80), snat4, join(backend4, 8080), header.ProtoTCP},
		{"udp4", join(client4, 40000), join(vip4, 53), snat4, join(backend4, 5353), header.ProtoUDP},
		{"tcp6", join(client6, 40000), join(vip6, 80), snat6, join(backend6, 8080), header.ProtoTCP},
		{"udp6", join(client6, 40000), join(vip6, 53), snat6, join(backend6, 5353), header.ProtoUDP},
		{"node port", join(client4, 40000), join(node4, 30080), snat4, join(backend4, 8082), header.ProtoTCP},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			g := l.workers[0]
			l.send(0, packet(tt.proto, tt.client, tt.vip, headertest.SYN))
			frame, p := l.out(g.nic)
			l.wantTuple(&p, "", tt.end)
			if got := p.Tuple.Src.String(); got != tt.snat || p.Tuple.SrcPort < 20000 || p.Tuple.SrcPort >= 30000 {
				t.Fatalf("source %s port %d, want %s and a port of the range", got, p.Tuple.SrcPort, tt.snat)
			}
			if p.TTL != 63 {
				t.Errorf("TTL %d, want 63", p.TTL)
			}
			if [6]byte(frame[:6]) != macBackend || [6]byte(frame[6:12]) != macOurs {
				t.Errorf("Ethernet addresses %x", frame[:12])
			}
			src, _ := ends(&p.Tuple)
			l.send(0, packet(tt.proto, tt.end, src.String(), headertest.SYN|headertest.ACK))
			frame, p = l.out(g.nic)
			l.wantTuple(&p, tt.vip, tt.client)
			if [6]byte(frame[:6]) != macClient {
				t.Errorf("reply goes to %x", frame[:6])
			}
			l.nothing(g.nic, g.host)
		})
	}
}

func packet(proto uint8, src, dst string, flags uint8) *headertest.Packet {
	if proto == header.ProtoUDP {
		return headertest.UDP(src, dst, "question")
	}
	return headertest.TCP(src, dst, flags)
}

// TestReplyAtOtherWorker: a reply may arrive at any queue, and needs no hand-off.
func TestReplyAtOtherWorker(t *testing.T) {
	l := newLab(t, labConfig{workers: 2})
	for port := uint16(1000); port < 1100; port++ {
		l.send(0, headertest.TCP(join(client4, port), join(vip4, 80), headertest.SYN))
		_, p := l.out(l.workers[0].nic)
		src, dst := ends(&p.Tuple)
		l.send(1, headertest.TCP(dst.String(), src.String(), headertest.SYN|headertest.ACK))
		_, p = l.out(l.workers[1].nic)
		l.wantTuple(&p, join(vip4, 80), join(client4, port))
	}
}

func TestKeepClient(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	l.send(0, headertest.TCP(join(client4, 40000), join(keepVIP, 80), headertest.SYN))
	_, p := l.out(g.nic)
	l.wantTuple(&p, join(client4, 40000), join(backend4, 8081))
	l.send(0, headertest.TCP(join(backend4, 8081), join(client4, 40000), headertest.SYN|headertest.ACK))
	_, p = l.out(g.nic)
	l.wantTuple(&p, join(keepVIP, 80), join(client4, 40000))
}

// TestKeepClientTwoVIPs: one client port reaches one backend through two VIPs. The
// backend must see two connections, and each reply must come from its own VIP.
func TestKeepClientTwoVIPs(t *testing.T) {
	l := newLab(t, labConfig{edit: func(b *services.Builder) {
		serve(b, 10, "203.0.113.20", 80, header.ProtoTCP, backend4, 8081, true)
	}})
	g := l.workers[0]
	for _, vip := range []string{keepVIP, "203.0.113.20"} {
		l.send(0, headertest.TCP(join(client4, 40000), join(vip, 80), headertest.SYN))
		_, p := l.out(g.nic)
		src, dst := ends(&p.Tuple)
		if src.Addr().String() != client4 {
			t.Fatalf("source %v, want the client's address", src)
		}
		l.send(0, headertest.TCP(dst.String(), src.String(), headertest.SYN|headertest.ACK))
		_, p = l.out(g.nic)
		l.wantTuple(&p, join(vip, 80), join(client4, 40000))
	}
}

// TestLocalEndpoint: the kernel delivers the packet, and its answer goes to the gateway's address
// on the host link.
func TestLocalEndpoint(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	l.send(0, headertest.TCP(join(client4, 40000), join(localVIP, 80), headertest.SYN))
	l.nothing(g.nic)
	frame, p := l.out(g.host)
	l.wantTuple(&p, "", join(local4, 8080))
	src, dst := ends(&p.Tuple)
	if src.Addr().String() != hostSource || [6]byte(frame[:6]) != macKernel {
		t.Fatalf("source %v to %x, want %s to the kernel", src, frame[:6], hostSource)
	}
	if !g.host.Inject(headertest.TCP(dst.String(), src.String(), headertest.SYN|headertest.ACK).Bytes()) {
		t.Fatal("host link full")
	}
	l.step(time.Microsecond)
	_, p = l.out(g.nic)
	l.wantTuple(&p, join(localVIP, 80), join(client4, 40000))
}

// TestDrops: each packet is dropped with one named reason, and only the listed error is sent.
func TestDrops(t *testing.T) {
	tcp := func(src, dst string, flags uint8) *headertest.Packet { return headertest.TCP(src, dst, flags) }
	ttl := func(p *headertest.Packet, n uint8) *headertest.Packet { p.TTL = n; return p }
	tests := []struct {
		name   string
		packet *headertest.Packet
		reason reason.Drop
		error  uint8 // type of the sent ICMP error; 0 for none
	}{
		{"mid-stream segment", tcp(join(client4, 1), join(vip4, 80), headertest.ACK), reason.NoFlow, 0},
		{"reset without a flow", tcp(join(client4, 1), join(vip4, 80), headertest.RST), reason.NoFlow, 0},
		{"SYN-ACK to a frontend", tcp(join(client4, 1), join(vip4, 80), headertest.SYN|headertest.ACK), reason.NoFlow,
			0},
		{"no flags", tcp(join(client4, 1), join(vip4, 80), 0), reason.TCPFlags, 0},
		{"an SNAT address as source", tcp(join(snat4, 1), join(vip4, 80), headertest.SYN), reason.SpoofedSource, 0},
		{"the node as source", tcp(join(node4, 1), join(vip4, 80), headertest.SYN), reason.SpoofedSource, 0},
		{"the host link address as source", tcp(join(hostSource, 1), join(vip4, 80), headertest.SYN),
			reason.SpoofedSource, 0},
		{"land", tcp(join(vip4, 80), join(vip4, 80), headertest.SYN), reason.LandAttack, 0},
		{"loopback source", tcp("127.0.0.1:1", join(vip4, 80), headertest.SYN), reason.MartianSource, 0},
		{"port zero", tcp(join(client4, 0), join(vip4, 80), headertest.SYN), reason.PortZero, 0},
		{"last hop", ttl(tcp(join(client4, 1), join(vip4, 80), headertest.SYN), 1), reason.TTLExceeded,
			header.ICMPTimeExceeded},
		{"no endpoints", tcp(join(client4, 1), join(emptyVIP, 80), headertest.SYN), reason.NoEndpoints,
			header.ICMPUnreachable},
		{"no local endpoints", tcp(join(client4, 1), join(dropVIP, 80), headertest.SYN), reason.NoLocalEndpoints, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			g := l.workers[0]
			l.send(0, tt.packet)
			l.wantDrop(tt.reason, 1)
			if tt.error != 0 {
				_, p := l.out(g.nic)
				l.wantTuple(&p, "", "")
				if p.ICMPType != tt.error || p.Tuple.Dst != header.AddrFrom(tt.packet.Src) ||
					p.Tuple.Src != header.AddrFrom(tt.packet.Dst) {
					t.Fatalf("ICMP type %d from %v to %v", p.ICMPType, p.Tuple.Src, p.Tuple.Dst)
				}
			}
			l.nothing(g.nic, g.host)
			if n := l.table.Counts().Live; n != [2]uint64{} {
				t.Fatalf("%v flows, want none", n)
			}
		})
	}
}

// TestToKernel: steered packets that belong to no flow or frontend are returned to the kernel
// unchanged.
func TestToKernel(t *testing.T) {
	tests := []struct {
		name   string
		packet *headertest.Packet
	}{
		{"unserved port of a VIP", headertest.TCP(join(client4, 1), join(vip4, 81), headertest.SYN)},
		{"the node's own port", headertest.TCP(join(client4, 1), join(node4, 22), headertest.SYN)},
		{"a reply range shared with the host", headertest.UDP(join("192.0.2.53", 53), join(snat4, 20001), "answer")},
		{"ping to the node", headertest.Echo(client4, node4, 1, 1, false)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			g := l.workers[0]
			in := tt.packet.Bytes()
			l.send(0, tt.packet)
			out, _ := l.out(g.host)
			if string(headertest.IP(out)) != string(headertest.IP(in)) {
				t.Fatalf("changed:\n%x\n%x", headertest.IP(in), headertest.IP(out))
			}
			if [6]byte(out[:6]) != macKernel || [6]byte(out[6:12]) != macUser {
				t.Errorf("Ethernet addresses %x", out[:12])
			}
			if g.stats.Returned.Load() != 1 {
				t.Errorf("returned %d", g.stats.Returned.Load())
			}
		})
	}
}

func TestUnservedPortPolicy(t *testing.T) {
	for policy, errors := range map[services.UnservedPolicy]bool{
		services.UnservedReject: true, services.UnservedDrop: false,
	} {
		l := newLab(t, labConfig{edit: func(b *services.Builder) { b.Settings().UnservedPort = policy }})
		l.send(0, headertest.TCP(join(client4, 1), join(vip4, 81), headertest.SYN))
		l.wantDrop(reason.FrontendRejected, 1)
		if errors {
			l.out(l.workers[0].nic)
		}
		l.nothing(l.workers[0].nic, l.workers[0].host)
	}
}

// TestReopenedConnection: a SYN on a connection that is over is never dropped.
func TestReopenedConnection(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	client, vip := join(client4, 40000), join(vip4, 80)
	l.send(0, headertest.TCP(client, vip, headertest.SYN))
	_, p := l.out(g.nic)
	s, d := ends(&p.Tuple)
	snat, be := s.String(), d.String()
	l.send(0, headertest.TCP(be, snat, headertest.SYN|headertest.ACK), headertest.TCP(client, vip, headertest.ACK),
		headertest.TCP(be, snat, headertest.FIN|headertest.ACK),
		headertest.TCP(client, vip, headertest.FIN|headertest.ACK),
		headertest.TCP(be, snat, headertest.ACK))
	for range 5 {
		l.out(g.nic)
	}
	l.send(0, headertest.TCP(client, vip, headertest.SYN))
	_, p = l.out(g.nic)
	l.wantTuple(&p, "", be)
	if got := l.table.Counts().States[flowtable.SynSeen]; got != 1 {
		t.Fatalf("%d half-open flows, want 1", got)
	}
}

// TestRemovedBackend: a TCP flow continues, a UDP flow moves with its next datagram.
func TestRemovedBackend(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	l.send(0, headertest.TCP(join(client4, 1), join(vip4, 80), headertest.SYN), headertest.UDP(join(client4, 1),
		join(vip4, 53), "x"))
	l.out(g.nic)
	_, p := l.out(g.nic)
	l.wantTuple(&p, "", join(backend4, 5353))
	l.publish(func(b *services.Builder) {
		b.DeleteBackend(services.MakeBackendRef(1, 1))
		b.DeleteBackend(services.MakeBackendRef(2, 1))
		for i, f := range []services.FrontendKey{
			{Addr: addr(vip4), Port: 80, Proto: header.ProtoTCP}, {Addr: addr(vip4), Port: 53, Proto: header.ProtoUDP},
		} {
			be := backend(uint32(20+i), services.ServiceID(1+i), second4, 9000, f.Proto)
			b.SetBackend(be)
			old, _ := l.handle.Load().FrontendByKey(f)
			next := *old
			next.Outside.Set = &services.EndpointSet{Backends: []services.BackendRef{be.Ref}, Table: []uint16{0}}
			b.SetFrontend(&next)
		}
	})
	l.send(0, headertest.TCP(join(client4, 1), join(vip4, 80), headertest.ACK), headertest.UDP(join(client4, 1),
		join(vip4, 53), "x"))
	_, p = l.out(g.nic)
	l.wantTuple(&p, "", join(backend4, 8080))
	_, p = l.out(g.nic)
	l.wantTuple(&p, "", join(second4, 9000))
}

// TestRoutesChange: a changed neighbour changes its hop in place; a changed route makes flows look
// up their hops again.
func TestRoutesChange(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	l.send(0, headertest.TCP(join(client4, 1), join(vip4, 80), headertest.SYN))
	l.out(g.nic)
	moved := [6]byte{2, 0, 0, 0, 7, 7}
	hop := *l.hops.Hop(hopBackend)
	hop.DstMAC = moved
	l.hops.SetHop(hopBackend, &hop) // the neighbour's MAC changed: no new view
	l.send(0, headertest.TCP(join(client4, 1), join(vip4, 80), headertest.ACK))
	if frame, _ := l.out(g.nic); [6]byte(frame[:6]) != moved {
		t.Fatalf("sent to %x, want the new MAC", frame[:6])
	}
	view := *l.hops.View()
	view.Generation++
	view.Routes = view.Routes.InsertPersist(netip.MustParsePrefix("10.0.1.0/24"),
		nexthop.Route{Hop: hopClient, Kind: nexthop.OnLink})
	l.hops.Publish(&view)
	l.send(0, headertest.TCP(join(client4, 1), join(vip4, 80), headertest.ACK))
	if frame, _ := l.out(g.nic); [6]byte(frame[:6]) != macClient {
		t.Fatalf("sent to %x, want the new route's hop", frame[:6])
	}
}

// TestReopenedConnectionKeepsItsPort: the backend may have the old connection in TIME_WAIT, and
// compares the new SYN with it.
func TestReopenedConnectionKeepsItsPort(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	client, vip := join(client4, 1), join(vip4, 80)
	pass := func(src, dst string, flags uint8) (string, string) {
		l.send(0, headertest.TCP(src, dst, flags))
		_, p := l.out(g.nic)
		s, d := ends(&p.Tuple)
		return s.String(), d.String()
	}
	snat, be := pass(client, vip, headertest.SYN)
	pass(be, snat, headertest.SYN|headertest.ACK)
	pass(client, vip, headertest.ACK)
	pass(be, snat, headertest.FIN|headertest.ACK)
	pass(client, vip, headertest.FIN|headertest.ACK)
	pass(be, snat, headertest.ACK)
	if again, _ := pass(client, vip, headertest.SYN); again != snat {
		t.Errorf("source %s became %s", snat, again)
	}
}

// TestForgedSourceNeverReachesTheKernel: on the host link the kernel accepts local sources, so
// packets from outside with a local source must not reach it.
func TestForgedSourceNeverReachesTheKernel(t *testing.T) {
	l := newLab(t, labConfig{})
	l.send(0, headertest.UDP(join(node4, 5), join(snat4, 25000), "x"))
	for _, f := range headertest.Split(
		headertest.UDP(join(snat4, 5), join(node4, 2049), string(make([]byte, 1200))).Bytes(), 800, 9,
	) {
		l.workers[0].nic.Inject(f)
	}
	l.step(time.Microsecond)
	l.nothing(l.workers[0].host)
	l.wantDrop(reason.SpoofedSource, 3)
}

// TestDo: a task runs at any time, and Do of a worker that has ended returns false.
func TestDo(t *testing.T) {
	l := newLab(t, labConfig{})
	w := l.workers[0].Worker
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		ended <- w.Run(ctx, fastpath.RunConfig{CPU: -1,
			Waiting: fastpath.Waiting{Spin: 20 * time.Microsecond, Sleep: 100 * time.Millisecond}})
	}()
	var group sync.WaitGroup
	var ran atomic.Int64
	for range 8 {
		group.Go(func() {
			for range 200 {
				if !w.Do(ctx, func(*fastpath.Worker) { ran.Add(1) }) {
					t.Error("a task was not run")
				}
			}
		})
	}
	group.Wait()
	if ran.Load() != 1600 {
		t.Errorf("%d of 1600 tasks ran", ran.Load())
	}
	given, giveUp := context.WithCancel(context.Background())
	giveUp()
	before := ran.Load()
	did := w.Do(given, func(*fastpath.Worker) { ran.Add(1) })
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := ran.Load() - before; did != (got == 1) {
		t.Errorf("Do returned %v, and the task ran %d times", did, got)
	}
	if w.Do(context.Background(), func(*fastpath.Worker) { t.Error("run by a worker that ended") }) {
		t.Error("a worker that ended ran a task")
	}
}
