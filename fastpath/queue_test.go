package fastpath_test

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/test/bed/memlink"
	"sluice.dev/sluice/test/bed/size"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// unresolved adds UDP port 99 with a backend whose neighbour is not resolved.
func unresolved(b *services.Builder) {
	serve(b, 10, vip4, 99, header.ProtoUDP, "10.0.9.1", 99, false)
}

func (l *lab) resolve(ip string) {
	view := *l.hops.View()
	view.Routes = view.Routes.InsertPersist(prefix(ip+"/32"), nexthop.Route{Hop: hopBackend, Kind: nexthop.OnLink})
	l.hops.Publish(&view)
}

func TestHeldUntilResolved(t *testing.T) {
	l := newLab(t, labConfig{edit: unresolved})
	g := l.workers[0]
	for range 3 {
		l.send(0, headertest.UDP(join(client4, 5), join(vip4, 99), "x"))
	}
	l.nothing(g.nic)
	if g.stats.Held.Load() != 3 {
		t.Fatalf("held %d, want 3", g.stats.Held.Load())
	}
	select {
	case r := <-l.hops.FirstRequests():
		if r.Addr != addr("10.0.9.1") {
			t.Fatalf("requested %v", r.Addr)
		}
	default:
		t.Fatal("the next hop was not requested")
	}
	l.resolve("10.0.9.1")
	l.step(2 * time.Millisecond)
	for range 3 {
		frame, p := l.out(g.nic)
		l.wantTuple(&p, "", "10.0.9.1:99")
		if [6]byte(frame[:6]) != macBackend {
			t.Fatalf("sent to %x", frame[:6])
		}
	}
	l.send(0, headertest.UDP(join(client4, 5), join(vip4, 99), "x"))
	l.out(g.nic) // at once, now
	if g.stats.Held.Load() != 0 {
		t.Fatalf("held %d", g.stats.Held.Load())
	}
}

// TestLostRequestIsRepeated: a request that found the queue full is repeated.
func TestLostRequestIsRepeated(t *testing.T) {
	l := newLab(t, labConfig{edit: unresolved})
	for len(l.hops.FirstRequests()) < cap(l.hops.FirstRequests()) {
		l.hops.ResolveFirst(addr("10.0.9.77"))
	}
	l.send(0, headertest.UDP(join(client4, 5), join(vip4, 99), "x"))
	for len(l.hops.FirstRequests()) > 0 {
		<-l.hops.FirstRequests()
	}
	for range 3 {
		l.step(60 * time.Millisecond)
	}
	if len(l.hops.FirstRequests()) == 0 {
		t.Error("the request was not repeated")
	}
}

// TestHopFlapsWhileHeld: a hop that fails again while held packets are released must not lose them.
// Validate panics if a packet is lost.
func TestHopFlapsWhileHeld(t *testing.T) {
	l := newLab(t, labConfig{edit: unresolved})
	up := &nexthop.Hop{Kind: nexthop.OnLink, Ready: true, MTU: 1500, DstMAC: macBackend, SrcMAC: macOurs}
	down := &nexthop.Hop{Kind: nexthop.OnLink, MTU: 1500, DstMAC: macBackend, SrcMAC: macOurs}
	l.hops.SetHop(3, down)
	view := *l.hops.View()
	view.Routes = view.Routes.InsertPersist(prefix("10.0.9.1/32"), nexthop.Route{Hop: 3, Kind: nexthop.OnLink})
	l.hops.Publish(&view)
	var stop atomic.Bool
	var flapping sync.WaitGroup
	flapping.Go(func() {
		for !stop.Load() {
			l.hops.SetHop(3, up)
			l.hops.SetHop(3, down)
		}
	})
	defer flapping.Wait()
	defer stop.Store(true)
	steps := 20_000
	if size.Race {
		steps = 4000
	}
	for range steps {
		for range 4 {
			l.workers[0].nic.Inject(headertest.UDP(join(client4, 5), join(vip4, 99), "x").Bytes())
		}
		l.step(2 * time.Millisecond)
		l.workers[0].nic.Loop()
	}
}

func TestHeldTooLong(t *testing.T) {
	l := newLab(t, labConfig{edit: unresolved})
	l.send(0, headertest.UDP(join(client4, 5), join(vip4, 99), "x"))
	l.step(999 * time.Millisecond)
	l.step(2 * time.Millisecond)
	l.wantDrop(reason.NeighbourPending, 1)
}

func TestHeldPerHop(t *testing.T) {
	l := newLab(t, labConfig{edit: unresolved})
	for range 20 {
		l.send(0, headertest.UDP(join(client4, 5), join(vip4, 99), "x"))
	}
	l.wantDrop(reason.NeighbourQueueFull, 4)
	// Packets to other hops are not delayed.
	l.send(0, headertest.UDP(join(client4, 5), join(vip4, 53), "x"))
	l.out(l.workers[0].nic)
}

func TestLinkDown(t *testing.T) {
	l := newLab(t, labConfig{})
	l.open(join(client4, 1), join(vip4, 80))
	l.workers[0].nic.SetUp(false)
	l.send(0, headertest.TCP(join(client4, 1), join(vip4, 80), headertest.ACK))
	l.wantDrop(reason.LinkDown, 1)
	l.workers[0].nic.SetUp(true)
	l.send(0, headertest.TCP(join(client4, 1), join(vip4, 80), headertest.ACK))
	l.out(l.workers[0].nic)
}

// TestFullRing: packets that a link does not take are dropped with their reason, and the worker
// continues.
func TestFullRing(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	for range ringSize + 44 {
		l.send(0, headertest.UDP(join(client4, 5), join(vip4, 53), "x"))
	}
	l.wantDrop(reason.TxRingFull, 44)
	if n := g.nic.Loop(); n != ringSize {
		t.Fatalf("sent %d", n)
	}
	l.step(time.Microsecond)
	l.send(0, headertest.UDP(join(client4, 5), join(vip4, 53), "x"))
	l.out(g.nic)
}

// TestFragments: a datagram's fragments in every order, over two workers, in both directions.
func TestFragments(t *testing.T) {
	tests := []struct{ name, client, vip, snat, end string }{
		{"v4", join(client4, 40000), join(vip4, 53), snat4, join(backend4, 5353)},
		{"v6", join(client6, 40000), join(vip6, 53), snat6, join(backend6, 5353)},
	}
	payload := make([]byte, 3900)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for n, order := range orders {
				l := newLab(t, labConfig{workers: 2})
				whole := headertest.UDP(tt.client, tt.vip, string(payload)).Bytes()
				parts := headertest.Split(whole, 1400, uint32(1000+n))
				for i, at := range order {
					if !l.workers[i%2].nic.Inject(parts[at]) {
						t.Fatal("link full")
					}
					l.step(2 * time.Millisecond)
				}
				l.step(2 * time.Millisecond)
				l.wantFragments(3, tt.end)
			}
		})
	}
}

var orders = [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}

// wantFragments takes n fragments of one datagram from any worker, to one backend,
// with one identification.
func (l *lab) wantFragments(n int, to string) {
	l.t.Helper()
	ids := map[uint32]int{}
	for _, g := range l.workers {
		for {
			frame, ok := g.nic.Take(nil)
			if !ok {
				break
			}
			var p header.Packet
			if r := header.Parse(frame, &p); r != reason.None {
				l.t.Fatal(r)
			}
			ids[p.FragmentID]++
			if want := netip.MustParseAddrPort(to); p.Tuple.Dst.Netip() != want.Addr() {
				l.t.Fatalf("fragment to %v", p.Tuple.Dst)
			}
		}
	}
	if len(ids) != 1 {
		l.t.Fatalf("identifications %v, want one; drops %v", ids, l.drops())
	}
	for id, got := range ids {
		if got != n {
			l.t.Fatalf("%d fragments with identification %d, want %d; drops %v", got, id, n, l.drops())
		}
	}
}

// TestFragmentOfAnOldDatagram: identifications are used again. A later fragment that arrives first
// must wait, and not get the ports of an old datagram.
func TestFragmentOfAnOldDatagram(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	payload := string(make([]byte, 1200))
	for _, f := range headertest.Split(headertest.UDP(join(client4, 1111), join(vip4, 53), payload).Bytes(), 800, 9) {
		g.nic.Inject(f)
	}
	l.step(time.Microsecond)
	g.nic.Loop()
	l.step(5 * time.Second)
	g.nic.Inject(headertest.Split(headertest.UDP(join(client4, 2222), join(vip4, 53), payload).Bytes(), 800, 9)[1])
	l.step(time.Microsecond)
	l.nothing(g.nic)
}

// TestFragmentsOfOtherProtocols: fragments of protocols that are not translated go to the kernel,
// or are forwarded if they come from it.
func TestFragmentsOfOtherProtocols(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	inject := func(link *memlink.Link, p *headertest.Packet) {
		for _, f := range headertest.Split(p.Bytes(), 800, 9) {
			link.Inject(f)
		}
		l.step(time.Microsecond)
	}
	esp := func(src, dst string) *headertest.Packet {
		return &headertest.Packet{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Proto: 50,
			Payload: make([]byte, 1200)}
	}
	inject(g.nic, esp(client4, node4))
	if n := g.host.Loop(); n != 2 {
		t.Errorf("%d of 2 ESP fragments for the node went to the kernel", n)
	}
	inject(g.host, esp(local4, client4))
	ping := headertest.Echo(local4, client4, 7, 1, false)
	ping.Payload = make([]byte, 1200)
	inject(g.host, ping)
	if n := g.nic.Loop(); n != 4 {
		t.Errorf("%d of 4 fragments from the kernel were forwarded; drops %v", n, l.drops())
	}
	g.host.Inject(headertest.ICMPError(local4, client4, 3, 3, 0, headertest.UDP(join(client4, 999), join(local4, 8080),
		"x").Bytes(), 28).Bytes())
	l.step(time.Microsecond)
	if n := g.nic.Loop(); n != 1 {
		t.Errorf("an ICMP error of a local endpoint was not forwarded; drops %v", l.drops())
	}
}

func TestFragmentsWithoutFirst(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	parts := headertest.Split(headertest.UDP(join(client4, 1), join(vip4, 53), string(make([]byte, 2000))).Bytes(),
		1400, 1)
	for range 70 {
		g.nic.Inject(parts[1])
	}
	l.step(time.Microsecond)
	l.step(time.Microsecond)
	l.wantDrop(reason.FragmentLimit, 6)
	l.step(1100 * time.Millisecond)
	if d := l.drops(); d["fragment_timeout"] != 64 || g.stats.Held.Load() != 0 {
		t.Fatalf("drops %v, held %d", d, g.stats.Held.Load())
	}
}

// TestSecondFirstFragment: the backend that got the first must not receive the second.
func TestSecondFirstFragment(t *testing.T) {
	l := newLab(t, labConfig{})
	for _, port := range []uint16{53, 80} {
		parts := headertest.Split(headertest.UDP(join(client4, 1), join(vip4, port),
			string(make([]byte, 2000))).Bytes(), 1400, 1)
		l.workers[0].nic.Inject(parts[0])
		l.step(time.Microsecond)
	}
	l.wantDrop(reason.FragmentOverlap, 1)
}

// TestLaws: random bytes and random packets on both links, with link flaps and route changes;
// Validate panics in a step that breaks a law.
func TestLaws(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	l := newLab(t, labConfig{workers: 2, flows: 256, edit: unresolved})
	for range 20000 {
		g := l.workers[rnd.IntN(2)]
		link := g.nic
		if rnd.IntN(8) == 0 {
			link = g.host
		}
		link.Inject(randomFrame(rnd))
		if rnd.IntN(500) == 0 {
			link.SetUp(rnd.IntN(2) == 0)
		}
		if rnd.IntN(3) == 0 {
			l.step(time.Duration(rnd.IntN(int(time.Millisecond))))
			g.nic.Loop()
			g.host.Loop()
		}
	}
	for _, g := range l.workers {
		if in, out := g.stats.PacketLaw(); in != out || in == 0 {
			t.Errorf("packet law: in %d, accounted %d", in, out)
		}
	}
}

func randomFrame(rnd *rand.Rand) []byte {
	srcs := []string{client4, vip4, backend4, snat4, node4, local4, hostSource}
	pick := func() string { return srcs[rnd.IntN(len(srcs))] }
	port := []uint16{80, 53, 99, 5353, 8080, 20001, 30080, uint16(rnd.Uint32())}
	var p *headertest.Packet
	src, dst := join(pick(), port[rnd.IntN(len(port))]), join(pick(), port[rnd.IntN(len(port))])
	switch rnd.IntN(4) {
	case 0:
		p = headertest.TCP(src, dst, uint8(rnd.Uint32()))
	case 1:
		p = headertest.UDP(src, dst, string(make([]byte, rnd.IntN(1400))))
	case 2:
		p = headertest.Echo(pick(), pick(), 1, 1, rnd.IntN(2) == 0)
	default:
		p = headertest.ICMPError(pick(), pick(), []uint8{3, 11, 5, 12}[rnd.IntN(4)], 4, 1400,
			headertest.TCP(src, dst, 2).Bytes(), rnd.IntN(60))
	}
	if rnd.IntN(4) == 0 {
		p.VLAN = []uint16{100, 200}[:1+rnd.IntN(2)]
	}
	p.TTL = uint8(1 + rnd.IntN(64))
	frame := p.Bytes()
	if rnd.IntN(3) == 0 {
		frame = frame[:rnd.IntN(len(frame)+1)]
	}
	for range rnd.IntN(3) {
		if len(frame) > 0 {
			frame[rnd.IntN(len(frame))] ^= byte(1 << rnd.IntN(8))
		}
	}
	return frame
}

// TestStepDoesNotAllocate: the hot path does not allocate in the steady state.
func TestStepDoesNotAllocate(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	l.open(join(client4, 1), join(vip4, 80))
	known := headertest.TCP(join(client4, 1), join(vip4, 80), headertest.ACK).Bytes()
	drop := headertest.TCP(join(client4, 2), join(vip4, 80), headertest.ACK).Bytes()
	allocs := testing.AllocsPerRun(1000, func() {
		for range 16 {
			g.nic.Inject(known)
			g.nic.Inject(drop)
		}
		l.now += uint64(10 * time.Microsecond)
		g.Step(l.now)
		g.nic.Loop()
	})
	if allocs != 0 {
		t.Fatalf("%v allocations per step of 32 packets", allocs)
	}
	port := uint16(2000)
	fresh := headertest.UDP(join(client4, 1), join(vip4, 53), "x").Bytes()
	allocs = testing.AllocsPerRun(1000, func() {
		port++
		fresh[34], fresh[35] = byte(port>>8), byte(port)
		fresh[40], fresh[41] = 0, 0 // no UDP checksum
		g.nic.Inject(fresh)
		l.now += uint64(10 * time.Microsecond)
		g.Step(l.now)
		g.nic.Loop()
	})
	if allocs != 0 {
		t.Fatalf("%v allocations per new flow", allocs)
	}
}

// TestVLAN: received tags are removed, and the tags of the next hop's device are added, each with
// its protocol.
func TestVLAN(t *testing.T) {
	l := newLab(t, labConfig{})
	hop := *l.hops.Hop(hopBackend)
	for i, outer := range []uint16{header.EtherTypeVLAN, header.EtherTypeQinQ} {
		hop.VLANs, hop.VLAN = 2, [2]nexthop.Tag{{TPID: outer, TCI: 100}, {TPID: header.EtherTypeVLAN, TCI: 200}}
		l.hops.SetHop(hopBackend, new(hop))
		l.tagged(i, &hop)
	}
}

// tagged sends packets with up to two tags to a tagged hop.
func (l *lab) tagged(round int, hop *nexthop.Hop) {
	l.t.Helper()
	for tags := range 3 {
		p := headertest.TCP(join(client4, uint16(10+3*round+tags)), join(vip4, 80), headertest.SYN)
		p.VLAN = []uint16{7, 8}[:tags]
		l.send(0, p)
		frame, out := l.out(l.workers[0].nic)
		types := [2]uint16{binary.BigEndian.Uint16(frame[12:]), binary.BigEndian.Uint16(frame[16:])}
		if out.VLANs != 2 || out.VLAN != [2]uint16{100, 200} || types != [2]uint16{hop.VLAN[0].TPID,
			hop.VLAN[1].TPID} || [6]byte(frame[:6]) != macBackend {
			l.t.Fatalf("%d tags in: %d tags %v of types %#x out, want %+v", tags, out.VLANs, out.VLAN, types, hop.VLAN)
		}
	}
}

func TestSpoofedFromHostLinkIsNotLooped(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	// The kernel sends a packet from a kept source that belongs to no flow: it is forwarded.
	g.host.Inject(headertest.TCP(join(backend4, 8081), join(client4, 9), headertest.ACK).Bytes())
	// A packet whose destination only the kernel reaches must not go back to it.
	g.host.Inject(headertest.TCP(join(backend4, 8081), join(local4, 9), headertest.ACK).Bytes())
	l.step(time.Microsecond)
	frame, p := l.out(g.nic)
	l.wantTuple(&p, join(backend4, 8081), join(client4, 9))
	if [6]byte(frame[:6]) != macClient || p.TTL != 64 {
		t.Fatalf("sent to %x with TTL %d", frame[:6], p.TTL)
	}
	l.nothing(g.nic, g.host)
	l.wantDrop(reason.HostLinkOther, 1)
}
