package fastpath_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// dropSamples takes the samples of a worker.
func dropSamples(g *gate) (list []capture.Record) {
	g.DropSamples().Read(func(r *capture.Record, _ []byte) bool {
		list = append(list, *r)
		return true
	})
	return list
}

// drop sends packets that are dropped, one for each reason of a list.
func (l *lab) drop(reasons ...reason.Drop) {
	l.t.Helper()
	var packets []*headertest.Packet
	for _, r := range reasons {
		p := headertest.UDP(join(client4, 7), join(vip4, 53), "x")
		switch r {
		case reason.PortZero:
			p = headertest.UDP(join(client4, 0), join(vip4, 53), "x")
		case reason.TCPFlags:
			p = headertest.TCP(join(client4, 7), join(vip4, 80), 0)
		case reason.NoLocalEndpoints:
			p = headertest.TCP(join(client4, 7), join(dropVIP, 80), tcpSYN)
		}
		packets = append(packets, p)
	}
	l.send(0, packets...)
}

// TestSampleWeights: the weights of the samples add up to the counters for any drops and any times
// at which they are read, and there is at most one in 10 ms for each reason.
func TestSampleWeights(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	l := newLab(t, labConfig{})
	g, began := l.workers[0], l.now
	reasons := []reason.Drop{reason.PortZero, reason.TCPFlags, reason.NoLocalEndpoints}
	weights, samples := map[string]uint64{}, map[string]uint64{}
	read := func() {
		for _, s := range dropSamples(g) {
			weights[s.Reason.String()] += s.Weight
			samples[s.Reason.String()]++
			if s.Weight == 0 || s.Point != capture.Dropped || s.At < began || s.At > l.now {
				t.Fatalf("sample %+v", s)
			}
		}
	}
	for range 3000 {
		var list []reason.Drop
		for range random.IntN(40) {
			list = append(list, reasons[min(random.IntN(3), random.IntN(3))])
		}
		l.drop(list...)
		l.step(time.Duration(random.ExpFloat64() * float64(2*time.Millisecond)))
		if random.IntN(100) == 0 {
			read()
		}
	}
	elapsed := l.now - began
	g.Pause()
	read()
	for name, n := range l.drops() {
		if weights[name] != n {
			t.Errorf("%s: weights of %d, %d packets were dropped", name, weights[name], n)
		}
		if most := elapsed/uint64(10*time.Millisecond) + 2; samples[name] > most || samples[name] < most/4 {
			t.Errorf("%s: %d samples in %v", name, samples[name], time.Duration(elapsed))
		}
	}
	if len(weights) != len(reasons) {
		t.Errorf("reasons %v", weights)
	}
}

// TestSampleShares: a client that sends bursts and one whose few packets come between them have the
// shares of their packets.
func TestSampleShares(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	const rounds, burst = 2000, 50
	shares := map[string]float64{}
	send := func(client string, n int) {
		var packets []*headertest.Packet
		for range n {
			packets = append(packets, headertest.TCP(join(client, 7), join(dropVIP, 80), tcpSYN))
		}
		l.send(0, packets...)
	}
	for range rounds {
		send("198.51.100.1", burst)
		l.step(time.Millisecond)
		send("198.51.100.2", burst/10)
		l.step(11 * time.Millisecond)
		send("198.51.100.3", 1)
		l.step(11 * time.Millisecond)
		for _, s := range dropSamples(g) {
			a := s.Flow.Client.Addr()
			shares[a.Netip().String()] += float64(s.Weight)
		}
	}
	// In each round a sample of weight 55 is of the second client with probability 1/11.
	deviation := 55 * math.Sqrt(rounds*1/11.*10/11)
	for _, c := range []struct {
		client  string
		packets float64 // of a round
		most    float64 // error
	}{{"198.51.100.1", burst, 5 * deviation}, {"198.51.100.2", burst / 10, 5 * deviation}, {"198.51.100.3", 1, 0}} {
		if got, want := shares[c.client], c.packets*rounds; math.Abs(got-want) > c.most {
			t.Errorf("%s: %v drops by the samples, %v in truth", c.client, got, want)
		}
	}
}

// TestSamplesWithoutReader: a reader that does not read costs no weight and no memory: a window
// goes on until the ring has room.
func TestSamplesWithoutReader(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	const rounds = 3000
	for range rounds {
		l.drop(reason.PortZero, reason.PortZero)
		l.step(11 * time.Millisecond)
	}
	lost := g.DropSamples().Lost.Load()
	if lost == 0 {
		t.Fatal("the ring has had room for all")
	}
	sum := uint64(0)
	for _, s := range dropSamples(g) {
		sum += s.Weight
	}
	l.step(11 * time.Millisecond)
	last := dropSamples(g)
	if len(last) != 1 || last[0].Weight < rounds || sum+last[0].Weight != 2*rounds {
		t.Errorf("%d samples of %d and %v after the stall, %d packets were dropped", len(last), sum, last, 2*rounds)
	}
}

// TestSamplePackets: a sample has the packet's sockets and its flow, for packets of both sides,
// before and after their translation.
func TestSamplePackets(t *testing.T) {
	edit := func(b *services.Builder) {
		serve(b, 10, vip4, 99, header.ProtoUDP, "10.0.9.1", 99, false)
		serve(b, 11, vip6, 99, header.ProtoUDP, "2001:db8:9::1", 99, false)
	}
	for _, c := range []struct {
		name string
		// drop makes the gateway drop a packet of a flow from client to vip.
		drop        func(l *lab, client, vip string) reason.Drop
		port        uint16
		known       bool
		reply       bool
		service     uint32 // of IPv4
		later, bare bool
	}{
		{"client side", func(l *lab, client, vip string) reason.Drop {
			l.open(client, vip)
			p := headertest.TCP(client, vip, tcpACK)
			p.TTL = 1
			l.send(0, p)
			return reason.TTLExceeded
		}, 80, true, false, 1, false, false},
		{"reply side", func(l *lab, client, vip string) reason.Drop {
			_, snat, backend := l.open(client, vip)
			p := headertest.TCP(backend, snat, tcpSYN|tcpACK)
			p.TTL = 1
			l.send(0, p)
			return reason.TTLExceeded
		}, 80, true, true, 1, false, false},
		{"held, translated", func(l *lab, client, vip string) reason.Drop {
			l.send(0, headertest.UDP(client, vip, "x"))
			l.step(2 * time.Second)
			return reason.NeighbourPending
		}, 99, true, false, 10, false, false},
		{"reply that no link takes, translated", func(l *lab, client, vip string) reason.Drop {
			_, snat, backend := l.open(client, vip)
			l.workers[0].nic.SetUp(false)
			l.send(0, headertest.TCP(backend, snat, tcpSYN|tcpACK))
			return reason.LinkDown
		}, 80, true, true, 1, false, false},
		{"an error about a flow", func(l *lab, client, vip string) reason.Drop {
			_, snat, backend := l.open(client, vip)
			router, kind := "10.0.1.254", uint8(header.ICMPUnreachable)
			if netip.MustParseAddrPort(client).Addr().Is6() {
				router, kind = "2001:db8:1::fe", header.ICMPv6Unreachable
			}
			host := netip.MustParseAddrPort(snat).Addr().String()
			p := headertest.ICMPError(router, host, kind, 1, 0, headertest.TCP(snat, backend, tcpSYN).Bytes(), 64)
			p.TTL = 1
			l.send(0, p)
			return reason.TTLExceeded
		}, 80, true, true, 1, false, false},
		{"no flow", func(l *lab, client, vip string) reason.Drop {
			l.send(0, headertest.TCP(client, vip, 0))
			return reason.TCPFlags
		}, 80, false, false, 0, false, false},
		{"a later fragment", func(l *lab, client, vip string) reason.Drop {
			parts := headertest.Split(headertest.UDP(client, vip, string(make([]byte, 2000))).Bytes(), 1400, 7)
			l.workers[0].nic.Inject(parts[1])
			l.step(time.Millisecond)
			l.step(2 * time.Second)
			return reason.FragmentTimeout
		}, 99, false, false, 0, true, false},
		{"no packet", func(l *lab, client, vip string) reason.Drop {
			l.workers[0].nic.Inject(headertest.UDP(client, vip, "x").Bytes()[:20])
			l.step(time.Millisecond)
			return reason.FrameTruncated
		}, 99, false, false, 0, false, true},
	} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/v6=%v", c.name, v6), func(t *testing.T) {
				l := newLab(t, labConfig{edit: edit})
				view := *l.hops.View()
				view.Routes = view.Routes.InsertPersist(prefix("2001:db8:9::/64"), nexthop.Route{Kind: nexthop.OnLink})
				l.hops.Publish(&view)
				client, vip, service := join(client4, 40000), join(vip4, c.port), c.service
				if v6 {
					client, vip = join(client6, 40000), join(vip6, c.port)
					service = map[uint32]uint32{0: 0, 1: 3, 10: 11}[c.service]
				}
				r := c.drop(l, client, vip)
				l.step(20 * time.Millisecond)
				list := dropSamples(l.workers[0])
				if len(list) != 1 || list[0].Reason != r || list[0].Weight != 1 {
					t.Fatalf("samples %+v, want one of %v; drops %v", list, r, l.drops())
				}
				s := &list[0]
				if s.Flow.Known != c.known || s.Flow.Reply != c.reply || s.Flow.Service != service ||
					s.Later != c.later {
					t.Errorf("sample %+v", s)
				}
				from, to := socket(&s.Flow.Client), socket(&s.Flow.Frontend)
				switch {
				case c.bare:
					client, vip = "[::]:0", "[::]:0"
				case c.later:
					client, vip = portless(client), portless(vip)
				}
				if from != client || to != vip {
					t.Errorf("from %s to %s, want %s and %s", from, to, client, vip)
				}
			})
		}
	}
}

func socket(s *flowtable.Socket) string {
	a := s.Addr()
	return netip.AddrPortFrom(a.Netip(), s.Port).String()
}

func portless(s string) string {
	return netip.AddrPortFrom(netip.MustParseAddrPort(s).Addr(), 0).String()
}

// TestSamplesAllocateNothing: neither a drop that is picked nor a sample allocates.
func TestSamplesAllocateNothing(t *testing.T) {
	l := newLab(t, labConfig{})
	g, frame := l.workers[0], headertest.TCP(join(client4, 7), join(dropVIP, 80), tcpSYN).Bytes()
	if n := testing.AllocsPerRun(200, func() {
		g.nic.Inject(frame)
		l.step(11 * time.Millisecond)
		g.DropSamples().Read(func(*capture.Record, []byte) bool { return true })
	}); n != 0 {
		t.Errorf("%v allocations for a drop", n)
	}
}

// BenchmarkDrop measures a flood of packets that are dropped: for the cheapest reason, and for one
// that needs a decision. One operation is one packet, without injecting it.
func BenchmarkDrop(b *testing.B) {
	for _, c := range []struct {
		name   string
		packet *headertest.Packet
	}{
		{"port_zero", headertest.UDP(join(client4, 0), join(vip4, 53), "0123456789abcdef01")},
		{"no_local_endpoints", headertest.TCP(join(client4, 7), join(dropVIP, 80), tcpSYN)},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := newLab(b, labConfig{})
			g, frame := l.workers[0], c.packet.Bytes()
			var spent time.Duration
			packets := 0
			for b.Loop() {
				for range 64 {
					g.nic.Inject(frame)
				}
				l.now += uint64(10 * time.Microsecond)
				began := time.Now()
				g.Step(l.now)
				spent += time.Since(began)
				packets += 64
			}
			b.ReportMetric(float64(spent.Nanoseconds())/float64(packets), "ns/packet")
			b.ReportMetric(0, "ns/op")
		})
	}
}
