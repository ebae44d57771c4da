package fastpath_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// manyBackends gives the UDP service enough backends for a million flows: the source ports towards
// each backend are limited.
func manyBackends(b *services.Builder) {
	const backends = 64
	set := &services.EndpointSet{}
	for i := range backends {
		be := backend(uint32(40+i), 2, fmt.Sprintf("10.0.1.%d", 100+i), 5353, header.ProtoUDP)
		b.SetBackend(be)
		set.Backends = append(set.Backends, be.Ref)
		set.Table = append(set.Table, uint16(i))
	}
	b.SetFrontend(&services.Frontend{
		Key:     services.FrontendKey{Addr: addr(vip4), Port: 53, Proto: header.ProtoUDP},
		Service: &services.Service{ID: 2, Namespace: "default", Name: "svc"}, Outside: services.Rule{Set: set},
	})
}

// BenchmarkStep measures the handling of a packet of a known flow: parse, check, look up, translate
// both ends, queue; everything but a real link. Flows are drawn uniformly. One operation is one
// packet, without injecting it and taking it out. With rebind each step has a new view of the
// routes, so each packet's flow must be bound again.
func BenchmarkStep(b *testing.B) {
	for _, rebind := range []bool{false, true} {
		for _, flows := range []int{1_000, 100_000, 1_000_000} {
			b.Run(fmt.Sprintf("rebind=%v/flows=%d", rebind, flows), func(b *testing.B) { benchStep(b, flows, rebind) })
		}
	}
}

func benchStep(b *testing.B, flows int, rebind bool) {
	l := newLab(b, labConfig{flows: uint32(flows) + 64, snat: services.PortRange{First: 2000, Count: 60_000},
		edit: manyBackends})
	g := l.workers[0]
	frame := headertest.UDP(join(client4, 1), join(vip4, 53), "0123456789abcdef01").Bytes()
	frame[40], frame[41] = 0, 0 // no UDP checksum, so that ports may be changed freely
	client := func(n int) []byte {
		binary.BigEndian.PutUint32(frame[26:], 0x65000000+uint32(n/50_000)) // 101.0.0.x
		binary.BigEndian.PutUint16(frame[34:], uint16(1024+n%50_000))
		headertest.SealIPv4(frame)
		return frame
	}
	open := 0
	for n := range flows {
		if !g.nic.Inject(client(n)) {
			b.Fatal("link full")
		}
		if n%64 == 63 || n == flows-1 {
			l.step(0)
			open += g.nic.Loop()
		}
	}
	if open != flows {
		b.Fatalf("only %d of %d flows could be opened: %v", open, flows, l.drops())
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	var spent time.Duration
	packets := 0
	for b.Loop() {
		for range 64 {
			g.nic.Inject(client(rnd.IntN(flows)))
		}
		l.now += uint64(10 * time.Microsecond)
		if rebind {
			view := *l.hops.View()
			view.Generation++
			l.hops.Publish(&view)
		}
		began := time.Now()
		g.Step(l.now)
		spent += time.Since(began)
		packets += g.nic.Loop()
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(packets), "ns/packet")
	b.ReportMetric(float64(packets)/spent.Seconds()/1e6, "Mpps")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkConnection measures connections that are opened and closed: SYN, SYN-ACK, ACK, a FIN
// from each side and the last ACK, each in a step of 64, or only the SYN. One operation is a
// connection, without injecting its packets and taking them out.
func BenchmarkConnection(b *testing.B) {
	b.Run("SYN", func(b *testing.B) { benchConnection(b, false) })
	b.Run("whole", func(b *testing.B) { benchConnection(b, true) })
}

func benchConnection(b *testing.B, whole bool) {
	const batch = 64
	l := newLab(b, labConfig{flows: 1 << 17, halfOpen: 1 << 17, snat: services.PortRange{First: 2000, Count: 60_000},
		edit: manyBackends})
	g, port := l.workers[0], 0
	client := make([]string, batch)
	var src, dst [batch]string
	pass := func(first bool, build func(i int) *headertest.Packet) {
		b.StopTimer()
		for i := range batch {
			if !g.nic.Inject(build(i).Bytes()) {
				b.Fatal("link full")
			}
		}
		b.StartTimer()
		l.now += uint64(50 * time.Microsecond)
		g.Step(l.now)
		b.StopTimer()
		for i := range batch {
			frame, ok := g.nic.Take(nil)
			for tries := 0; !ok && tries < batch; tries++ { // parked, if ports are scarce
				b.StartTimer()
				g.Step(l.now)
				b.StopTimer()
				frame, ok = g.nic.Take(nil)
			}
			if !ok {
				b.Fatalf("a packet was lost: %v", l.drops())
			}
			if first {
				var p header.Packet
				header.Parse(frame, &p)
				s, d := ends(&p.Tuple)
				src[i], dst[i] = s.String(), d.String()
			}
		}
		b.StartTimer()
	}
	vip := join(vip4, 80)
	for range (b.N + batch - 1) / batch {
		for i := range client {
			port++
			client[i] = join(fmt.Sprintf("101.%d.%d.7", port>>16&255, port>>8&255), uint16(1024+port&0xff))
		}
		pass(true, func(i int) *headertest.Packet { return headertest.TCP(client[i], vip, tcpSYN) })
		if !whole {
			continue
		}
		pass(false, func(i int) *headertest.Packet { return headertest.TCP(dst[i], src[i], tcpSYN|tcpACK) })
		pass(false, func(i int) *headertest.Packet { return headertest.TCP(client[i], vip, tcpACK) })
		pass(false, func(i int) *headertest.Packet { return headertest.TCP(client[i], vip, tcpFIN|tcpACK) })
		pass(false, func(i int) *headertest.Packet { return headertest.TCP(dst[i], src[i], tcpFIN|tcpACK) })
		pass(false, func(i int) *headertest.Packet { return headertest.TCP(client[i], vip, tcpACK) })
	}
}
