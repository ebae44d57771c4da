package flows

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
)

// portTable is a flow table and a reader of it, and makes flows that have source ports.
type portTable struct {
	*Reader
	t      testing.TB
	handle *flowtable.Handle
	now    flowtable.Time
	client uint32 // of the last flow
}

const (
	nodeSource = "192.0.2.20"  // shares snat.ports with the node: 100 of them
	ownSource  = "192.0.2.200" // no interface has it: 64,512 ports
	vip        = "203.0.113.9"
)

func addr(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }

func newPortTable(t testing.TB, flows uint32) *portTable {
	t.Helper()
	timeouts := flowtable.DefaultTimeouts()
	timeouts.SynSeen = time.Second
	timeouts.SynAckSeen, timeouts.UDPUnreplied = time.Hour, time.Hour // however slow the test is
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: flows, IPv6Flows: 1024, Timeouts: timeouts})
	if err != nil {
		t.Fatal(err)
	}
	b := services.NewBuilder(nil)
	b.SetAddr(addr(nodeSource), services.AddrSNAT|services.AddrLocal)
	b.SetAddr(addr(ownSource), services.AddrSNAT)
	s := b.Build()
	s.SNATPorts = services.PortRange{First: 20000, Count: 100}
	published := new(services.Handle)
	published.Store(s)
	r, err := NewReader(table, published)
	if err != nil {
		t.Fatal(err)
	}
	h, err := table.Register()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close(); r.Close() })
	return &portTable{Reader: r, t: t, handle: h, now: flowtable.Time(boottime.Nanos()), client: 10 << 24}
}

// add makes a flow that was last seen some time ago, and has the backend answer it if asked.
// Without a source it keeps the address of its client, which is one for all such flows.
func (p *portTable) add(proto uint8, service uint32, source, backend string, port uint16, ago time.Duration,
	answered bool) {
	p.t.Helper()
	p.client++
	client := header.AddrFrom4([4]byte{byte(p.client >> 24), byte(p.client >> 16), byte(p.client >> 8), byte(p.client)})
	to, at := netip.MustParseAddrPort(backend), p.now-flowtable.Time(ago)
	dst := addr(vip)
	if to.Addr().Is6() {
		client, dst = addr("2001:db8::7"), addr("2001:db8::9")
	}
	if source == "" {
		client = addr("198.51.100.7")
	}
	f := flowtable.NewFlow{
		Client: header.Tuple{Src: client, SrcPort: uint16(p.client), Dst: dst, DstPort: uint16(service), Proto: proto,
			V6: to.Addr().Is6()},
		Backend: header.AddrFrom(to.Addr()), BackendPort: to.Port(), Source: client, SourcePort: port,
		Service: service, BackendRef: uint32(services.MakeBackendRef(service, 1)),
	}
	if source != "" {
		f.Source = addr(source)
	}
	p.handle.Enter(at)
	defer p.handle.Leave()
	ref, s := p.handle.Create(at, &f)
	if s != flowtable.Created {
		p.t.Fatalf("%s from port %d: %v", backend, port, s)
	}
	if answered {
		p.handle.Observe(ref, flowtable.ReplySide, flowtable.Segment{Flags: header.TCPSYN | header.TCPACK}, at)
	}
}

// TestSourcePorts: ports are counted by backend address, port, protocol and source address, over
// the Services that share the backend.
func TestSourcePorts(t *testing.T) {
	const dns, other, web, dns6 = "10.0.0.5:53", "10.0.0.6:53", "10.0.0.5:8080", "[2001:db8:1::5]:53"
	p := newPortTable(t, 4096)
	many := func(n, first int, add func(port uint16, answered bool)) {
		for i := range n {
			add(uint16(first+i), i%2 == 0)
		}
	}
	// 80 ports by two Services that share an endpoint, and half of the questions have no answer.
	for service, flows := range map[uint32]int{1: 50, 2: 30} {
		many(flows, 20000+50*int(service-1), func(port uint16, answered bool) {
			p.add(header.ProtoUDP, service, nodeSource, dns, port, 3*time.Second, answered)
		})
	}
	many(45, 20000, func(port uint16, _ bool) {
		p.add(header.ProtoUDP, 1, nodeSource, other, port, 3*time.Second, false)
	})
	// Another scope: more flows, and a smaller part of the ports.
	many(200, 1024, func(port uint16, _ bool) { p.add(header.ProtoUDP, 1, ownSource, dns, port, 0, false) })
	// Not counted: the client's own address, a port outside the range, expired.
	many(90, 20000, func(port uint16, _ bool) { p.add(header.ProtoUDP, 1, "", dns, port, 0, false) })
	many(90, 30000, func(port uint16, _ bool) { p.add(header.ProtoUDP, 1, nodeSource, dns, port, 0, false) })
	many(20, 20050, func(port uint16, _ bool) {
		p.add(header.ProtoTCP, 3, nodeSource, web, port, 4*time.Second, false)
	})
	many(10, 20000, func(port uint16, _ bool) { // half-open, and not young
		p.add(header.ProtoTCP, 3, nodeSource, web, port, 4*time.Second, true)
	})
	many(3, 20000, func(port uint16, _ bool) { p.add(header.ProtoUDP, 4, "2001:db8::20", dns6, port, 0, false) })

	of := func(backend, source string, used, unavailable int) status.BackendPortsView {
		return status.BackendPortsView{Backend: netip.MustParseAddrPort(backend), Source: netip.MustParseAddr(source),
			Ports: 100, Used: used, Unavailable: unavailable}
	}
	none := status.BackendPortsView{}
	want := []status.SourcePortsView{
		{Family: "ipv4", Protocol: "TCP", MostUsed: of(web, nodeSource, 10, 0), LeastAvailable: none},
		{Family: "ipv4", Protocol: "UDP", MostUsed: of(dns, nodeSource, 80, 40),
			LeastAvailable: of(other, nodeSource, 45, 45)},
		{Family: "ipv4", Protocol: "SCTP"},
		{Family: "ipv6", Protocol: "TCP"},
		{Family: "ipv6", Protocol: "UDP", MostUsed: of(dns6, "2001:db8::20", 3, 3),
			LeastAvailable: of(dns6, "2001:db8::20", 3, 3)},
		{Family: "ipv6", Protocol: "SCTP"},
	}
	got := p.SourcePorts()
	if len(got) != len(want) {
		t.Fatalf("%d views, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got  %+v\nwant %+v", got[i], want[i])
		}
	}
}

// TestSourcePortsAreCountedSeldom: a count is used again until its time has come, however often it
// is asked for.
func TestSourcePortsAreCountedSeldom(t *testing.T) {
	p := newPortTable(t, 1024)
	used := func() int { return p.SourcePorts()[1].MostUsed.Used } // UDP over IPv4
	p.add(header.ProtoUDP, 1, nodeSource, "10.0.0.5:53", 20000, 0, false)
	before := time.Now()
	if n := used(); n != 1 {
		t.Errorf("the first count found %d, want 1", n)
	}
	if next := p.ports.next; next.Before(before.Add(minSurveyAge)) || next.After(time.Now().Add(maxSurveyAge)) {
		t.Errorf("the next count is %v after the first, want %v to %v", next.Sub(before), minSurveyAge, maxSurveyAge)
	}
	p.add(header.ProtoUDP, 1, nodeSource, "10.0.0.5:53", 20001, 0, false)
	p.ports.next = time.Now().Add(time.Hour)
	if n := used(); n != 1 {
		t.Errorf("before the next count is due: %d, want the 1 of the first", n)
	}
	p.ports.next = time.Time{}
	if n := used(); n != 2 {
		t.Errorf("the next count found %d, want 2", n)
	}
}

// BenchmarkSourcePorts counts a million flows to 100,000 backends.
func BenchmarkSourcePorts(b *testing.B) {
	const flows, backends = 1_000_000, 100_000
	p := newPortTable(b, 1<<20)
	for i := range flows {
		n := i % backends
		backend := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 53)
		p.add(header.ProtoUDP, 1, nodeSource, backend.String(), 20000+uint16(i/backends), 0, i%2 == 0)
	}
	b.ReportAllocs()
	before, n := cpuTime(b), 0
	for b.Loop() {
		if views := sourcePortsViews(p.portUses()); views[1].MostUsed.Used != flows/backends {
			b.Fatalf("%+v", views[1])
		}
		n++
	}
	b.ReportMetric((cpuTime(b)-before).Seconds()*1000/float64(n), "cpu-ms/op")
}

// cpuTime is the time that the process has run on a CPU.
func cpuTime(b *testing.B) time.Duration {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
