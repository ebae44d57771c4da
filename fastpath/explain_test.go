package fastpath_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

func (l *lab) explainer() *decide.Explainer {
	l.t.Helper()
	e, err := decide.NewExplainer(decide.ExplainerConfig{
		Services: &l.handle, Hops: l.hops, Flows: l.table, Affinity: l.pins, HostSource4: addr(hostSource),
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(e.Close)
	return e
}

func tuple(proto uint8, src, dst string) header.Tuple {
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	return header.Tuple{Src: header.AddrFrom(s.Addr()), Dst: header.AddrFrom(d.Addr()), SrcPort: s.Port(),
		DstPort: d.Port(), Proto: proto, V6: s.Addr().Is6()}
}

// crowd fills a snapshot with all that a decision can depend on: frontends of all kinds and
// protocols, ranges, pods, affinity and schedulers, empty sets and hops of all kinds.
func crowd(b *services.Builder) {
	b.Settings().Pods = ranges("10.0.1.128/25", podCIDR)
	b.Settings().ResetUnknown = true
	b.SetAddr(addr(node4), services.AddrNode|services.AddrLocal)
	// two near, one unreachable, one behind the kernel
	ends := []string{"10.0.1.21", "10.0.1.22", "10.0.8.23", "10.244.0.24"}
	id := services.ServiceID(20)
	index := uint32(20)
	serve := func(kind services.FrontendKind, ip string, port uint16, proto uint8, edit func(*services.Frontend)) {
		id++
		all := set(b, id, index, proto, ends...)
		all.Weights = []uint16{1, 2, 1, 1}
		f := rules(b, id, kind, ip, port, proto, services.Rule{Set: all}, services.Rule{Set: all, KeepClient: true})
		index += uint32(len(ends))
		edit(f)
	}
	for i, proto := range []uint8{header.ProtoTCP, header.ProtoUDP, header.ProtoSCTP} {
		port := uint16(100 * (i + 1))
		for by := range services.Random { // Random itself cannot be predicted
			serve(services.LoadBalancer, ruleVIP, port+uint16(by), proto,
				func(f *services.Frontend) { f.Service.Scheduler = by })
		}
		serve(services.LoadBalancer, ruleVIP, port+20, proto,
			func(f *services.Frontend) { f.Service.AffinitySeconds = 60 })
		serve(services.LoadBalancer, ruleVIP, port+21, proto,
			func(f *services.Frontend) { f.Allowed = ranges("198.51.100.0/24") })
		serve(services.ExternalIP, ruleVIP, port+22, proto, func(f *services.Frontend) {
			f.Outside.Set, f.Outside.KeepClient = &services.EndpointSet{Empty: services.EmptyDrop}, true
		})
		serve(services.ClusterIP, ruleVIP, port+23, proto, func(f *services.Frontend) {
			f.Outside.Set, f.Pod.Set = &services.EndpointSet{}, &services.EndpointSet{}
		})
		serve(services.NodePort, "0.0.0.0", 30000+port, proto,
			func(f *services.Frontend) { f.Outside.KeepClient = true })
	}
}

// TestExplainAgreesWithWorker: packets of all kinds, some of known flows, are first explained and
// then sent. The worker must do the same as explained, and the explanation must change nothing.
func TestExplainAgreesWithWorker(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	pick := func(from ...string) string { return from[rnd.IntN(len(from))] }
	l := newLab(t, labConfig{flows: 1 << 14, edit: crowd})
	e, g := l.explainer(), l.workers[0]
	outcomes := map[string]int{}
	for range 6000 {
		which := rnd.IntN(3)
		proto := []uint8{header.ProtoTCP, header.ProtoUDP, header.ProtoSCTP}[which]
		src := join(pick("198.51.100.7", "198.51.100.8", "198.51.101.8", "10.0.1.200", "10.0.1.21", node4),
			uint16(1000+rnd.IntN(20)))
		port := uint16(100*(1+which) + rnd.IntN(25))
		dst := join(ruleVIP, port)
		if rnd.IntN(4) == 0 {
			dst = join(node4, 30000+port/100*100)
		}
		if rnd.IntN(30) == 0 {
			dst = join("203.0.113.99", 80)
		}
		if tu := tuple(proto, src, dst); tu.Src == tu.Dst {
			continue // a land attack is not well-formed
		}
		opens := rnd.IntN(3) > 0
		x := e.Explain(tuple(proto, src, dst), opens, flowtable.Time(l.now))
		var p *headertest.Packet
		switch {
		case proto == header.ProtoUDP:
			p = headertest.UDP(src, dst, "x")
		case proto == header.ProtoSCTP && opens:
			p = headertest.SCTP(src, dst, header.SCTPInit)
		case proto == header.ProtoSCTP:
			p = headertest.SCTP(src, dst, 0)
		case opens:
			p = headertest.TCP(src, dst, headertest.SYN)
		default:
			p = headertest.TCP(src, dst, headertest.ACK)
		}
		what := l.happens(p)
		said := predicted(&x)
		if said != what {
			t.Fatalf("%d %s -> %s, opens %v: said %q, was %q\n%+v", proto, src, dst, opens, said, what, x)
		}
		outcomes[x.Verdict.String()]++
		if x.Known {
			outcomes["known"]++
		}
		if x.PinInSet {
			outcomes["pinned"]++
		}
		l.step(5 * time.Millisecond)
		for _, link := range []interface{ Loop() int }{g.nic, g.host} {
			link.Loop()
		}
	}
	t.Log(outcomes)
	for _, want := range []string{
		"forward", "to kernel", "drop (no_flow)", "drop (no_endpoints)", "drop (no_local_endpoints)",
		"drop (source_range)", "drop (spoofed_source)", "drop (no_route)", "known", "pinned"} {
		if outcomes[want] < 20 {
			t.Errorf("%d times %s: the packets do not try it", outcomes[want], want)
		}
	}
}

// predicted returns an explanation in the form of happens.
func predicted(x *decide.Explanation) string {
	s := ""
	switch {
	case x.Verdict.Action == decide.Queued:
		s = fmt.Sprintf("%v %v to %v:%d", x.Route.Kind == nexthop.Kernel, x.Out.Src, x.Out.Dst, x.Out.DstPort)
	case x.Verdict.Action == decide.ToKernel:
		s = fmt.Sprintf("true %v to %v:%d", x.Tuple.Src, x.Tuple.Dst, x.Tuple.DstPort)
	default:
		s = x.Verdict.Reason.String()
	}
	if x.Notify {
		s += fmt.Sprintf(" error %d", x.Error)
	}
	if x.Reset {
		s += " RST"
	}
	return s
}

// happens sends a packet and returns the result: the link (host or not) and the addresses of the
// sent packet, or the drop, and the error that was sent.
func (l *lab) happens(p *headertest.Packet) string {
	l.t.Helper()
	before := l.drops()
	limited := func() uint64 {
		return l.workers[0].stats.ICMPLimited.Load() + l.workers[0].stats.ResetsLimited.Load()
	}
	errors := l.workers[0].stats.Generated.Load() + limited()
	l.send(0, p)
	s := ""
	for name, n := range l.drops() {
		if n != before[name] {
			s += name
		}
	}
	told := l.workers[0].stats.Generated.Load()+limited() != errors
	for host, link := range map[bool]interface {
		Take([]byte) ([]byte, bool)
	}{false: l.workers[0].nic, true: l.workers[0].host} {
		for {
			frame, ok := link.Take(nil)
			if !ok {
				break
			}
			var out header.Packet
			if r := header.Parse(frame, &out); r != reason.None {
				l.t.Fatal(r)
			}
			if out.Tuple.Proto == header.ProtoICMP {
				kinds := map[[2]uint8]nat.ErrorKind{{3, 3}: nat.PortUnreachable, {3, 1}: nat.HostUnreachable}
				s += fmt.Sprintf(" error %d", kinds[[2]uint8{out.ICMPType, out.ICMPCode}])
				told = false
				continue
			}
			if out.Tuple.Proto == header.ProtoTCP && out.TCPFlags&header.TCPRST != 0 {
				s += " RST"
				told = false
				continue
			}
			s += fmt.Sprintf("%v %v to %v:%d", host, out.Tuple.Src, out.Tuple.Dst, out.Tuple.DstPort)
		}
	}
	if told {
		l.t.Fatal("an error was limited: let more time pass between packets")
	}
	return s
}

// TestExplain: the fields of an explanation, one by one.
func TestExplain(t *testing.T) {
	l := newLab(t, labConfig{edit: func(b *services.Builder) {
		crowd(b)
		b.Settings().RetryOther = true
	}})
	e := l.explainer()
	ask := func(proto uint8, src, dst string) decide.Explanation {
		return e.Explain(tuple(proto, src, dst), true, flowtable.Time(l.now))
	}
	// The explanation has the matching range for pods only.
	x := ask(header.ProtoTCP, join("10.0.1.200", 1), join(ruleVIP, 100))
	if !x.Pod || x.PodRange.String() != "10.0.1.128/25" || x.Source != decide.SourceClient || x.Out.SrcPort != 1 {
		t.Errorf("pod: %+v", x)
	}
	if x = ask(header.ProtoTCP, join(client4, 1), join(ruleVIP, 100)); x.Pod || x.PodRange.IsValid() ||
		x.Source != decide.SourcePool && x.Source != decide.SourceHost {
		t.Errorf("outside: %+v", x)
	}
	if x.Frontend.Kind != services.LoadBalancer || x.Scheduler != services.Maglev ||
		x.Rule.Set.Backends[x.Rule.Set.Table[x.Slot]] != x.Backend.Ref || x.Generation != l.handle.Load().Generation {
		t.Errorf("maglev: %+v", x)
	}
	// Denied by the list of ranges.
	if x = ask(header.ProtoTCP, join("198.51.101.8", 1), join(ruleVIP, 121)); x.Outcome != services.Denied ||
		x.Frontend.Allowed.List()[0].String() != "198.51.100.0/24" {
		t.Errorf("denied: %+v", x)
	}
	// The compared connections are those of real flows.
	for n := range uint16(6) {
		l.happens(headertest.TCP(join(client4, 10+n), join(ruleVIP, 100+uint16(services.LeastConn)), headertest.SYN))
	}
	x = ask(header.ProtoTCP, join(client4, 1), join(ruleVIP, 100+uint16(services.LeastConn)))
	sum := int32(0)
	for _, load := range x.Loads {
		if sum += load.Connections; load.Connections == 0 || load.Connections > 2 {
			t.Errorf("%v has %d connections of 6 over 4 backends", load.Backend.Addr, load.Connections)
		}
	}
	if x.Slot != -1 || len(x.Loads) != 4 || sum != 6 || x.Loads[1].Weight != 2 {
		t.Errorf("least connections: %+v", x)
	}
	// Turns.
	l.happens(headertest.TCP(join(client4, 1), join(ruleVIP, 101), headertest.SYN))
	if x = ask(header.ProtoTCP, join(client4, 2), join(ruleVIP, 101)); x.Turn != 1 || x.Slot != 1 {
		t.Errorf("turn %d, slot %d, want 1, 1", x.Turn, x.Slot)
	}
	// A pin to a backend in the set, and one to a backend outside of it.
	f, _ := l.handle.Load().FrontendByKey(services.FrontendKey{Addr: addr(ruleVIP), Port: 120, Proto: header.ProtoTCP})
	for end, in := range map[string]bool{"10.0.1.22": true, "10.0.1.99": false} {
		pin := affinity.Pin{Addr: addr(end), Port: 8080}
		l.pins.Confirm(flowtable.Time(l.now), addr(client4), f.Service.Identity, pin, 60)
		x = ask(header.ProtoTCP, join(client4, 1), join(ruleVIP, 120))
		if x.Pin.Addr != addr(end) || x.PinInSet != in || in != (x.Backend.Addr == addr(end)) {
			t.Errorf("pinned to %s: %+v", end, x)
		}
	}
	l.pins.Settle(flowtable.Time(l.now), addr("198.51.100.99"), f.Service.Identity,
		affinity.Pin{Addr: addr("10.0.1.22"), Port: 8080}, affinity.Pin{}, 60)
	x = ask(header.ProtoTCP, join("198.51.100.99", 1), join(ruleVIP, 120))
	if steps := fmt.Sprint(x.Steps()); !x.Tentative || !strings.Contains(steps, "tentatively pinned to the backend") {
		t.Errorf("a tentative pin: %v", steps)
	}
	// A known flow, from both sides.
	l.send(0, headertest.TCP(join(client4, 7), join(vip4, 80), headertest.SYN))
	_, p := l.out(l.workers[0].nic)
	x = ask(header.ProtoTCP, join(client4, 7), join(vip4, 80))
	if !x.Known || x.Flow.State != flowtable.SynSeen || !x.Retry || x.Backend.Addr != addr(backend4) ||
		x.Out != p.Tuple || x.Hop != l.hops.Hop(hopBackend) {
		t.Errorf("known flow: %+v", x)
	}
	src, dst := ends(&p.Tuple)
	x = e.Explain(tuple(header.ProtoTCP, dst.String(), src.String()), false, flowtable.Time(l.now))
	if !x.Known || x.Side != flowtable.ReplySide || x.Retry || x.Out.Dst != addr(client4) ||
		x.Hop != l.hops.Hop(hopClient) {
		t.Errorf("its answer: %+v", x)
	}
}

// TestExplainDirect: packets of Services with direct return are explained and then sent, as in
// TestExplainAgreesWithWorker.
func TestExplainDirect(t *testing.T) {
	const inKernel, noSource = "10.244.0.24", "10.0.9.24" // reached by the kernel; without a source
	all := []string{node1, node2}
	syn, ack := uint8(headertest.SYN), uint8(headertest.ACK)
	for name, c := range map[string]struct {
		nodes  []string
		before []uint8                   // the client sends
		edit   func(b *services.Builder) // then
		flags  uint8
		reply  bool // the packet is of the other side
		want   string
	}{
		"a new flow":                  {all[:1], nil, nil, syn, false, node1},
		"in the middle":               {all[:1], nil, nil, ack, false, node1},
		"a known flow":                {all[:1], []uint8{syn}, nil, ack, false, node1},
		"a known flow's repeated SYN": {all[:1], []uint8{syn}, nil, syn, false, node1},
		"by the kernel":               {[]string{inKernel}, nil, nil, syn, false, "no_route"},
		"without a source":            {[]string{noSource}, nil, nil, syn, false, "no_route"},
		"a known flow by the kernel":  {[]string{inKernel}, []uint8{syn}, nil, ack, false, "no_route"},
		"a reply":                     {all[:1], []uint8{syn, ack}, nil, ack, true, "kernel"},
		"a reply to a VIP": {all[:1], []uint8{syn, ack}, func(b *services.Builder) {
			b.SetAddr(addr(client4), services.AddrVIP)
			b.Settings().UnservedPort = services.UnservedDrop
		}, ack, true, "protocol"},
		"a reply from the node itself": {all[:1], []uint8{syn, ack}, func(b *services.Builder) {
			b.SetAddr(addr(vip4), services.AddrVIP|services.AddrLocal)
		}, ack, true, "spoofed_source"},
		"endpoints are gone":         {all[:1], []uint8{syn}, direct(all, all[1:]), ack, false, node1},
		"and it is over":             {all[:1], []uint8{syn, headertest.RST}, direct(all, all[1:]), ack, false, node1},
		"and the client begins anew": {all[:1], []uint8{syn, headertest.RST}, direct(all, all[1:]), syn, false, node2},
		"the node is gone":           {all[:1], []uint8{syn}, direct(all[1:], all[1:]), ack, false, node2},
	} {
		t.Run(name, func(t *testing.T) {
			l := tunnelLab(t, labConfig{}, c.nodes...)
			from, to := join(client4, 40000), join(vip4, 80)
			for _, flags := range c.before {
				l.send(0, headertest.TCP(from, to, flags))
				l.step(time.Millisecond)
			}
			l.workers[0].nic.Loop()
			if c.edit != nil {
				l.publish(c.edit)
			}
			if c.reply {
				from, to = to, from
			}
			x := l.explainer().Explain(tuple(header.ProtoTCP, from, to), c.flags == syn, flowtable.Time(l.now))
			said := x.Verdict.Reason.String()
			switch x.Verdict.Action {
			case decide.Queued:
				towards := x.Towards()
				said = towards.Netip().String()
			case decide.ToKernel:
				said = "kernel"
			}
			before := l.drops()
			l.send(0, headertest.TCP(from, to, c.flags))
			happened := ""
			for name, n := range l.drops() {
				if n != before[name] {
					happened += name
				}
			}
			if frame, ok := l.workers[0].nic.Take(nil); ok {
				var outer header.Packet
				header.Parse(frame, &outer)
				happened += outer.Tuple.Dst.Netip().String()
			}
			if _, ok := l.workers[0].host.Take(nil); ok {
				happened += "kernel"
			}
			if said != c.want || happened != c.want {
				t.Errorf("said %q, was %q, want %q\n%v", said, happened, c.want, x.Steps())
			}
		})
	}
}

// TestExplainOffline: a snapshot and routes are enough.
func TestExplainOffline(t *testing.T) {
	l := newLab(t, labConfig{edit: crowd})
	e, err := decide.NewExplainer(decide.ExplainerConfig{Services: &l.handle, Hops: l.hops})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for by := range services.NumSchedulers {
		x := e.Explain(tuple(header.ProtoTCP, join(client4, 1), join(ruleVIP, 100+uint16(by))), true, 0)
		if known := by != services.Random; x.Known || (x.Frontend != nil) != known || known && x.Backend == nil {
			t.Errorf("%v: %+v", by, x)
		}
	}
}

// TestExplainLateAnswer: late answers of a backend whose flow was abandoned, and of a UDP endpoint
// that is gone.
func TestExplainLateAnswer(t *testing.T) {
	l := retryLab(t, true, false, backend4, second4)
	e := l.explainer()
	src, dst := l.syn(0)
	for range 2 {
		l.step(2 * time.Second)
		l.syn(0)
	}
	if x := e.Explain(tuple(header.ProtoTCP, dst, src), false, flowtable.Time(l.now)); x.Known ||
		x.Verdict.Reason != reason.LateAnswer {
		t.Errorf("TCP: %v, known %v", x.Verdict, x.Known)
	}
	l.send(0, headertest.UDP(join(client4, 1), join(vip4, 53), "x"))
	_, p := l.out(l.workers[0].nic)
	l.publish(func(b *services.Builder) { b.DeleteBackend(services.MakeBackendRef(2, 1)) })
	if x := e.Explain(p.Tuple.Reverse(), false, flowtable.Time(l.now)); x.Class != decide.BackendGone ||
		x.Verdict.Action != decide.Queued {
		t.Errorf("UDP, at once: %v, %v", x.Verdict, x.Class)
	}
	l.step(3 * time.Second)
	if x := e.Explain(p.Tuple.Reverse(), false, flowtable.Time(l.now)); !x.Known || x.Class != decide.BackendGone ||
		x.Verdict.Reason != reason.BackendGone {
		t.Errorf("UDP: %v, %v", x.Verdict, x.Class)
	}
	if x := e.Explain(tuple(header.ProtoUDP, join(client4, 1), join(vip4, 53)), false,
		flowtable.Time(l.now)); !x.Known || x.Class != decide.Superseded {
		t.Errorf("the client's: %v", x.Class)
	}
}

// TestExplainSuperseded: a packet of a known but superseded flow is explained as the new flow that
// it would make.
func TestExplainSuperseded(t *testing.T) {
	l := newLab(t, labConfig{})
	e, g := l.explainer(), l.workers[0]
	client, vip := join(client4, 40000), join(vip4, 80)
	_, snat, be := l.open(client, vip)
	l.send(0, headertest.TCP(be, snat, headertest.RST|headertest.ACK)) // refused: over
	l.out(g.nic)
	if x := e.Explain(tuple(header.ProtoTCP, client, vip), false, flowtable.Time(l.now)); x.Class != decide.InFlow ||
		x.Frontend != nil || x.Out.SrcPort == 0 {
		t.Errorf("an ACK: %+v", x)
	}
	if x := e.Explain(tuple(header.ProtoTCP, client, vip), true, flowtable.Time(l.now)); !x.Known ||
		x.Class != decide.Superseded || x.Frontend == nil || x.Out.SrcPort != 0 {
		t.Errorf("a SYN: %+v", x)
	}
	l.send(0, headertest.UDP(client, join(vip4, 53), "x"))
	l.out(g.nic)
	l.publish(func(b *services.Builder) {
		b.DeleteBackend(services.MakeBackendRef(2, 1))
		f, _ := b.Settings().FrontendByKey(services.FrontendKey{Addr: addr(vip4), Port: 53, Proto: header.ProtoUDP})
		next := *f
		next.Outside.Set = &services.EndpointSet{}
		b.SetFrontend(&next)
	})
	x := e.Explain(tuple(header.ProtoUDP, client, join(vip4, 53)), false, flowtable.Time(l.now))
	if x.Class != decide.Superseded || x.Verdict.Reason != reason.NoEndpoints || !x.Notify ||
		x.Out != (header.Tuple{}) || x.Hop != nil {
		t.Errorf("UDP without endpoints: %+v", x)
	}
}

// TestExplainFlowOfEarlierProcess: such a flow has no backend until its next packet; the
// explanation has the backend that the packet will find.
func TestExplainFlowOfEarlierProcess(t *testing.T) {
	l := newLab(t, labConfig{})
	h, err := l.table.Register()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	client := tuple(header.ProtoUDP, join(client4, 40000), join(vip4, 53))
	h.Enter(flowtable.Time(l.now))
	if _, status := h.Create(flowtable.Time(l.now), &flowtable.NewFlow{
		Client: client, Backend: addr(backend4), BackendPort: 5353, Source: addr(snat4), SourcePort: 21000,
	}); status != flowtable.Created {
		t.Fatal(status)
	}
	h.Leave()
	x := l.explainer().Explain(client, false, flowtable.Time(l.now))
	if !x.Known || x.Class != decide.InFlow || x.Backend == nil || x.Backend.Ref != services.MakeBackendRef(2, 1) ||
		x.Flow.Binding != 0 {
		t.Errorf("%+v", x)
	}
}

// TestExplanationAsText: the text of an explanation, in the order of the decisions.
func TestExplanationAsText(t *testing.T) {
	l := newLab(t, labConfig{edit: crowd})
	e := l.explainer()
	l.pins.Confirm(flowtable.Time(l.now), addr(client4), 30<<32, affinity.Pin{Addr: addr("10.0.1.22"), Port: 8080}, 60)
	for _, tt := range []struct {
		name, src, dst string
		want           []string
	}{
		{"in turn", join(client4, 1), join(ruleVIP, 101), []string{
			"flow: none",
			"frontend: LoadBalancer 203.0.113.60:101 of default/rules",
			"source ranges: none",
			"client: outside of the cluster",
			"endpoints: 4, and the client's address is replaced",
			"affinity: none",
			"scheduler: rr, slot 0 of 4",
			"backend: 10.0.1.21:8080",
			"leaves as: 10.0.1.2, a port to be drawn (of snat.addresses) -> 10.0.1.21:8080",
			"next hop: 10.0.1.254",
			"verdict: forward",
		}},
		{"least connections, a pod", join("10.0.1.200", 14), join(ruleVIP, 103), []string{
			"flow: none",
			"frontend: LoadBalancer 203.0.113.60:103 of default/rules",
			"source ranges: none",
			"client: a pod, of 10.0.1.128/25",
			"endpoints: 4, and the client's address is kept",
			"affinity: none",
			"scheduler: lc; of connections, 10.0.1.21:8080 has 0 (weight 1), 10.0.1.22:8080 has 0 (weight 2), " +
				"10.0.8.23:8080 has 0 (weight 1), 10.244.0.24:8080 has 0 (weight 1)",
			"backend: 10.244.0.24:8080",
			"leaves as: 10.0.1.200:14 -> 10.244.0.24:8080",
			"next hop: the kernel, by the host link",
			"verdict: forward",
		}},
		{"not in the ranges", join("198.51.101.8", 1), join(ruleVIP, 121), []string{
			"flow: none",
			"frontend: LoadBalancer 203.0.113.60:121 of default/rules",
			"source ranges: the client is in none of 198.51.100.0/24",
			"verdict: drop (source_range)",
		}},
		{"pinned", join(client4, 1), join(ruleVIP, 120), []string{
			"flow: none",
			"frontend: LoadBalancer 203.0.113.60:120 of default/rules",
			"source ranges: none",
			"client: outside of the cluster",
			"endpoints: 4, and the client's address is replaced",
			"affinity: 60 s, and the client is pinned to the backend",
			"scheduler: maglev, not asked",
			"backend: 10.0.1.22:8080",
			"leaves as: 10.0.1.2, a port to be drawn (of snat.addresses) -> 10.0.1.22:8080",
			"next hop: 10.0.1.254",
			"verdict: forward",
		}},
		{"no endpoints", join(client4, 1), join(ruleVIP, 123), []string{
			"flow: none",
			"frontend: ClusterIP 203.0.113.60:123 of default/rules",
			"source ranges: none",
			"client: outside of the cluster",
			"endpoints: none is usable",
			"verdict: drop (no_endpoints); the sender gets ICMP port unreachable",
		}},
		{"no frontend", join(client4, 1), join(ruleVIP, 99), []string{
			"flow: none",
			"frontend: none has this address, port and protocol",
			"verdict: to kernel",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			hop := *l.hops.Hop(hopBackend)
			hop.Addr = addr("10.0.1.254")
			l.hops.SetHop(hopBackend, &hop)
			x := e.Explain(tuple(header.ProtoTCP, tt.src, tt.dst), true, flowtable.Time(l.now))
			var got []string
			for _, s := range x.Steps() {
				got = append(got, s.Name+": "+s.Text)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestExplainGroup: whether other gateways of a group get copies of a flow, and if not, why; and
// the silence of a gateway that does not have all flows.
func TestExplainGroup(t *testing.T) {
	l, decided := groupLab(t, labConfig{})
	l.publish(func(b *services.Builder) {
		b.SetAddr(addr(node4), services.AddrNode|services.AddrLocal)
		cluster := services.Rule{Set: set(b, 30, 30, header.ProtoTCP, backend4)}
		local := services.Rule{Set: set(b, 31, 31, header.ProtoTCP, backend4), KeepClient: true}
		kernel := services.Rule{Set: set(b, 32, 32, header.ProtoTCP, "10.244.0.24")}
		rules(b, 30, services.NodePort, "0.0.0.0", 30080, header.ProtoTCP, cluster, cluster)
		rules(b, 31, services.LoadBalancer, ruleVIP, 81, header.ProtoTCP, local, local)
		rules(b, 32, services.LoadBalancer, ruleVIP, 82, header.ProtoTCP, kernel, kernel)
	})
	board := l.workers[0].config.Copies
	e, err := decide.NewExplainer(decide.ExplainerConfig{Services: &l.handle, Hops: l.hops, Flows: l.table,
		HostSource4: addr(hostSource), MayReset: board.MayReset})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	step := func(name, src, dst string, opens bool) string {
		x := e.Explain(tuple(header.ProtoTCP, src, dst), opens, flowtable.Time(l.now))
		for _, s := range x.Steps() {
			if s.Name == name {
				return s.Text
			}
		}
		return "no such step"
	}
	want := func(name, src, dst string, opens bool, text string) {
		t.Helper()
		if got := step(name, src, dst, opens); !strings.Contains(got, text) {
			t.Errorf("%s to %s: %s is %q, want %q", src, dst, name, got, text)
		}
	}
	want("group", join(client4, 1), join(vip4, 80), true, "other gateways get copies of the flow")
	want("group", join(client4, 1), join(node4, 30080), true, "not protected: a node port")
	want("group", join(client4, 1), join(ruleVIP, 81), true, "not protected: the backend gets the client's address")
	want("group", join(client4, 1), join(ruleVIP, 82), true, "not protected: the backend is reached by the host link")
	l.openBy(1000)
	want("group", join(client4, 1000), join(vip4, 80), false, "other gateways get copies of the flow")
	decided(copies.Protected)

	want("verdict", join(client4, 1), join(vip4, 80), false, "the sender gets no RST, because")
	board.SetResetsUntil(uint64(l.now) + uint64(time.Hour))
	want("verdict", join(client4, 1), join(vip4, 80), false, "the sender gets an RST")
	l.publish(func(b *services.Builder) { b.Settings().Group4 = header.Addr{} })
	want("group", join(client4, 1), join(vip4, 80), true, "not protected: no source address of the group is open")
}
