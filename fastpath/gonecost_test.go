package fastpath_test

import (
	"fmt"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// widely returns n sorted addresses.
func widely(n int) (ips []string) {
	for i := range n {
		ips = append(ips, fmt.Sprintf("10.%d.%d.%d", 100+i>>16, i>>8&255, i&255))
	}
	return ips
}

// goneLab has a Service of n endpoints, and an open connection of client4 to a former endpoint.
func goneLab(t testing.TB, n int) (l *lab, syn []byte) {
	l = newLab(t, labConfig{edit: func(b *services.Builder) {
		both(b, 30, ruleVIP, header.ProtoTCP, set(b, 30, 30, header.ProtoTCP, backend4))
	}})
	l.validate = false
	p := headertest.TCP(join(client4, 40000), join(ruleVIP, 80), headertest.SYN)
	l.send(0, p)
	_, out := l.out(l.workers[0].nic)
	src, dst := ends(&out.Tuple)
	for _, s := range []*headertest.Packet{
		headertest.TCP(dst.String(), src.String(), headertest.SYN|headertest.ACK),
		headertest.TCP(join(client4, 40000), join(ruleVIP, 80), headertest.ACK),
	} {
		l.send(0, s)
		l.out(l.workers[0].nic)
	}
	l.publish(func(b *services.Builder) {
		b.DeleteBackend(services.MakeBackendRef(30, 1))
		both(b, 30, ruleVIP, header.ProtoTCP, set(b, 30, 100, header.ProtoTCP, widely(n)...))
	})
	return l, p.Bytes()
}

// stepOf returns the time of a step that receives a packet.
func (l *lab) stepOf(frame []byte) time.Duration {
	g := l.workers[0]
	g.nic.Inject(frame)
	l.now += uint64(time.Microsecond)
	began := time.Now()
	g.Step(l.now)
	spent := time.Since(began)
	g.nic.Loop()
	return spent
}

// TestGoneEndpointOfALargeService: a client's SYN on a connection whose endpoint is gone makes the
// worker search for the endpoint. The search takes about as long for 65,000 endpoints as for 1,000,
// while a linear search would take 65 times as long. Each figure is the minimum of many steps,
// which other work on the machine does not affect.
func TestGoneEndpointOfALargeService(t *testing.T) {
	const rounds, bound = 300, 8
	small, smallSYN := goneLab(t, 1000)
	large, largeSYN := goneLab(t, 65_000)
	few, many := time.Hour, time.Hour
	for range rounds {
		few, many = min(few, small.stepOf(smallSYN)), min(many, large.stepOf(largeSYN))
	}
	t.Logf("a step with such a SYN: %v with 1,000 endpoints, %v with 65,000", few, many)
	if many > bound*few {
		t.Errorf("%v with 65,000 endpoints, %v with 1,000", many, few)
	}
}

// BenchmarkGoneEndpoint measures a client's SYN on a connection whose endpoint is gone.
func BenchmarkGoneEndpoint(b *testing.B) {
	for _, n := range []int{1, 1_000, 65_000, 130_000} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			l, syn := goneLab(b, n)
			var spent time.Duration
			packets := 0
			for b.Loop() {
				spent += l.stepOf(syn)
				packets++
			}
			b.ReportMetric(float64(spent.Nanoseconds())/float64(packets), "ns/packet")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// TestSearchesCountAsNewFlows: clients repeat SYNs on connections whose endpoint came back with
// another number. A step searches for as many endpoints as it may open flows, except for the part
// reserved for parked packets. All SYNs are forwarded.
func TestSearchesCountAsNewFlows(t *testing.T) {
	const connections, perStep = 100, fastpath.OpensPerStep - opensForParked
	l := newLab(t, labConfig{edit: func(b *services.Builder) {
		both(b, 30, ruleVIP, header.ProtoTCP, set(b, 30, 30, header.ProtoTCP, backend4))
	}})
	g := l.workers[0]
	syns := func() {
		for i := range connections {
			l.inject(headertest.TCP(join(client4, uint16(1024+i)), join(ruleVIP, 80), headertest.SYN))
		}
	}
	syns()
	l.steps()
	if n := g.nic.Loop(); n != connections {
		t.Fatalf("%d of %d connections were opened", n, connections)
	}
	l.publish(func(b *services.Builder) {
		b.DeleteBackend(services.MakeBackendRef(30, 1))
		both(b, 30, ruleVIP, header.ProtoTCP, set(b, 30, 50, header.ProtoTCP, backend4))
	})
	for found := 0; found < connections; {
		syns()
		l.step(time.Microsecond)
		want := min(connections, found+perStep)
		if found = int(l.table.Loads()[50].Load()); found != want {
			t.Fatalf("%d endpoints were found, want %d", found, want)
		}
		if n := g.nic.Loop(); n != connections {
			t.Fatalf("%d of %d SYNs were forwarded: %v", n, connections, l.drops())
		}
	}
}
