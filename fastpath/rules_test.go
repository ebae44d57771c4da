package fastpath_test

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// More addresses of the lab: VIPs that the tests add, and pods of the cluster.
const (
	ruleVIP   = "203.0.113.60"
	clusterIP = "10.96.0.10"
	pod4      = "10.0.1.200"
	podCIDR   = "10.0.1.0/24"
)

// set adds backends ip:8080 of a service, with the indexes from first on, and returns
// their set. The addresses must be in order.
func set(b *services.Builder, id services.ServiceID, first uint32, proto uint8, ips ...string) *services.EndpointSet {
	s := &services.EndpointSet{}
	for i, ip := range ips {
		be := backend(first+uint32(i), id, ip, 8080, proto)
		b.SetBackend(be)
		s.Backends = append(s.Backends, be.Ref)
		s.Table = append(s.Table, uint16(i))
	}
	return s
}

// rules adds a frontend of a new service. The caller sets its rules.
func rules(
	b *services.Builder, id services.ServiceID, kind services.FrontendKind, ip string, port uint16, proto uint8,
	outside, pod services.Rule,
) *services.Frontend {
	svc := &services.Service{ID: id, Namespace: "default", Name: "rules", Proto: proto, Port: port,
		Identity: uint64(id) << 32}
	svc.Backends = inOrder(b, outside.Set, pod.Set)
	b.SetService(svc)
	if a := addr(ip); a != services.AnyIPv4 {
		b.SetAddr(a, b.Settings().Owned(a)|services.AddrVIP)
	}
	f := &services.Frontend{Key: services.FrontendKey{Addr: addr(ip), Port: port, Proto: proto}, Kind: kind,
		Service: svc, Outside: outside, Pod: pod, Turn: new(services.Turn)}
	b.SetFrontend(f)
	return f
}

// inOrder returns the backends of sets in the order of services.Service.Backends.
func inOrder(b *services.Builder, sets ...*services.EndpointSet) (refs []services.BackendRef) {
	for _, s := range sets {
		refs = append(refs, s.Backends...)
	}
	slices.SortFunc(refs, func(x, y services.BackendRef) int {
		one, other := b.Settings().Backend(x), b.Settings().Backend(y)
		return cmp.Or(one.Addr.Netip().Unmap().Compare(other.Addr.Netip().Unmap()), cmp.Compare(one.Port, other.Port))
	})
	return slices.Compact(refs)
}

// both adds a frontend with the same rule for clients of both kinds.
func both(
	b *services.Builder, id services.ServiceID, ip string, proto uint8, to *services.EndpointSet,
) *services.Frontend {
	return rules(b, id, services.LoadBalancer, ip, 80, proto, services.Rule{Set: to}, services.Rule{Set: to})
}

func ranges(cidrs ...string) *services.Prefixes {
	var list []netip.Prefix
	for _, c := range cidrs {
		list = append(list, netip.MustParsePrefix(c))
	}
	return services.NewPrefixes(list)
}

// TestVIPAsSource: an external IP may be another node's address, and a VIP may also be another
// gateway's. Packets with such a source are from a client like others, if the ranges include it. An
// address of this node is not a valid source.
func TestVIPAsSource(t *testing.T) {
	for _, tt := range []struct {
		name    string
		flags   services.AddrFlags
		allowed *services.Prefixes
		drop    reason.Drop
	}{
		{"a VIP", services.AddrVIP, nil, reason.None},
		{"a VIP in the ranges", services.AddrVIP, ranges(otherVIP + "/32"), reason.None},
		{"a VIP that is not in the ranges", services.AddrVIP, ranges("192.0.2.1/32"), reason.SourceRangeDenied},
		{"a VIP on this node", services.AddrVIP | services.AddrLocal, nil, reason.SpoofedSource},
		{"a VIP that accepts node ports", services.AddrVIP | services.AddrNode, nil, reason.SpoofedSource},
		{"a VIP among the source addresses", services.AddrVIP | services.AddrSNAT, nil, reason.SpoofedSource},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, labConfig{edit: func(b *services.Builder) {
				both(b, 30, ruleVIP, header.ProtoTCP, set(b, 30, 30, header.ProtoTCP, backend4)).Allowed = tt.allowed
				b.SetAddr(addr(otherVIP), tt.flags)
			}})
			l.send(0, headertest.TCP(join(otherVIP, 40000), join(ruleVIP, 80), headertest.SYN))
			if tt.drop != reason.None {
				l.nothing(l.workers[0].nic, l.workers[0].host)
				l.wantDrop(tt.drop, 1)
				return
			}
			_, p := l.out(l.workers[0].nic)
			l.wantTuple(&p, "", join(backend4, 8080))
		})
	}
}

// TestSourceRanges: loadBalancerSourceRanges. Packets from other sources are dropped silently, with
// endpoints and without; a change does not affect open connections.
func TestSourceRanges(t *testing.T) {
	friend, stranger := join("198.51.100.7", 40000), join("198.51.100.200", 40000)
	var front, empty *services.Frontend
	l := newLab(t, labConfig{edit: func(b *services.Builder) {
		front = both(b, 30, ruleVIP, header.ProtoTCP, set(b, 30, 30, header.ProtoTCP, backend4))
		front.Allowed = ranges("198.51.100.0/25")
		empty = both(b, 31, "203.0.113.61", header.ProtoTCP, &services.EndpointSet{})
		empty.Allowed = front.Allowed
	}})
	g := l.workers[0]
	l.send(0, headertest.TCP(stranger, join(ruleVIP, 80), headertest.SYN),
		headertest.TCP(stranger, join("203.0.113.61", 80), headertest.SYN))
	l.nothing(g.nic, g.host)
	l.wantDrop(reason.SourceRangeDenied, 2)
	l.send(0, headertest.TCP(friend, join(ruleVIP, 80), headertest.SYN))
	_, p := l.out(g.nic)
	l.wantTuple(&p, "", join(backend4, 8080))
	l.publish(func(b *services.Builder) {
		next := *front
		next.Allowed = ranges("192.0.2.0/24")
		b.SetFrontend(&next)
	})
	l.send(0, headertest.TCP(friend, join(ruleVIP, 80), headertest.ACK))
	_, p = l.out(g.nic)
	l.wantTuple(&p, "", join(backend4, 8080))
	l.wantDrop(reason.SourceRangeDenied, 2)
}

// TestKindOfClient: the backend and source address for each kind of client and frontend.
func TestKindOfClient(t *testing.T) {
	for _, tt := range []struct {
		name         string
		kind         services.FrontendKind
		outside, pod services.Rule // without sets: near for outside, far for pods
		client       string
		backend      string
		kept         bool
	}{
		{"VIP, policy Cluster: translated", services.LoadBalancer, services.Rule{}, services.Rule{}, client4, backend4,
			false},
		{"VIP, policy Cluster: pods are translated as well", services.LoadBalancer, services.Rule{}, services.Rule{},
			pod4, second4, false},
		{"VIP, policy Local: kept", services.LoadBalancer, services.Rule{KeepClient: true},
			services.Rule{KeepClient: true}, client4, backend4, true},
		{"VIP, policy Local: does not apply to pods", services.LoadBalancer, services.Rule{KeepClient: true},
			services.Rule{KeepClient: true}, pod4, second4, true},
		{"ClusterIP: translated", services.ClusterIP, services.Rule{}, services.Rule{KeepClient: true}, client4,
			backend4, false},
		{"ClusterIP: pods are kept", services.ClusterIP, services.Rule{}, services.Rule{KeepClient: true}, pod4,
			second4, true},
		{"hairpin: a pod that reaches itself is translated", services.ClusterIP, services.Rule{},
			services.Rule{KeepClient: true}, second4, second4, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, labConfig{edit: func(b *services.Builder) {
				b.Settings().Pods = ranges(podCIDR)
				tt.outside.Set = set(b, 30, 30, header.ProtoTCP, backend4)
				tt.pod.Set = set(b, 30, 31, header.ProtoTCP, second4)
				rules(b, 30, tt.kind, clusterIP, 80, header.ProtoTCP, tt.outside, tt.pod)
			}})
			g := l.workers[0]
			client := join(tt.client, 40000)
			l.send(0, headertest.TCP(client, join(clusterIP, 80), headertest.SYN))
			_, p := l.out(g.nic)
			l.wantTuple(&p, "", join(tt.backend, 8080))
			src, dst := ends(&p.Tuple)
			if kept := src.String() == client; kept != tt.kept {
				t.Errorf("the backend sees %v, kept %v, want %v", src, kept, tt.kept)
			}
			l.send(0, headertest.TCP(dst.String(), src.String(), headertest.SYN|headertest.ACK))
			_, p = l.out(g.nic)
			l.wantTuple(&p, join(clusterIP, 80), client)
		})
	}
}

// TestPolicyLocal: no endpoint is on this node. Outside clients are dropped silently, and a pod
// gets an endpoint elsewhere.
func TestPolicyLocal(t *testing.T) {
	l := newLab(t, labConfig{edit: func(b *services.Builder) {
		b.Settings().Pods = ranges(podCIDR)
		rules(b, 30, services.LoadBalancer, ruleVIP, 80, header.ProtoTCP,
			services.Rule{Set: &services.EndpointSet{Empty: services.EmptyDrop}, KeepClient: true},
			services.Rule{Set: set(b, 30, 30, header.ProtoTCP, second4), KeepClient: true})
	}})
	g := l.workers[0]
	l.send(0, headertest.TCP(join(pod4, 1), join(ruleVIP, 80), headertest.SYN))
	_, p := l.out(g.nic)
	l.wantTuple(&p, join(pod4, 1), join(second4, 8080))
	l.send(0, headertest.TCP(join(client4, 1), join(ruleVIP, 80), headertest.SYN))
	l.nothing(g.nic, g.host)
	l.wantDrop(reason.NoLocalEndpoints, 1)
}

// TestAddressOfTheNode: a frontend has an address of the node. It has precedence over a node port
// with the same number; other node ports and the node's own ports are not affected.
func TestAddressOfTheNode(t *testing.T) {
	for _, kind := range []services.FrontendKind{services.LoadBalancer, services.ExternalIP, services.ClusterIP} {
		t.Run(kind.String(), func(t *testing.T) {
			l := newLab(t, labConfig{edit: func(b *services.Builder) {
				b.SetAddr(addr(node4), services.AddrNode|services.AddrLocal)
				to := services.Rule{Set: set(b, 30, 30, header.ProtoTCP, second4)}
				rules(b, 30, kind, node4, 30080, header.ProtoTCP, to, to)
				near := services.Rule{Set: set(b, 31, 31, header.ProtoTCP, backend4)}
				rules(b, 31, services.NodePort, "0.0.0.0", 30081, header.ProtoTCP, near, near)
			}})
			g := l.workers[0]
			for port, end := range map[uint16]string{30080: second4, 30081: backend4} {
				l.send(0, headertest.TCP(join(client4, 1), join(node4, port), headertest.SYN))
				_, p := l.out(g.nic)
				l.wantTuple(&p, "", join(end, 8080))
			}
			l.send(0, headertest.TCP(join(client4, 1), join(node4, 22), headertest.SYN))
			l.out(g.host)
		})
	}
}

// TestSchedulerOfService: the worker uses the service's scheduler, and counts turns and connections
// over all flows.
func TestSchedulerOfService(t *testing.T) {
	for name, by := range map[string]services.Scheduler{
		"rr": services.RoundRobin, "lc": services.LeastConn, "sh": services.SourceHash, "random": services.Random,
		"maglev": services.Maglev,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, labConfig{edit: func(b *services.Builder) {
				f := both(b, 30, ruleVIP, header.ProtoTCP, set(b, 30, 30, header.ProtoTCP, "10.0.1.21", "10.0.1.22",
					"10.0.1.23"))
				f.Service.Scheduler = by
			}})
			got := map[string]int{}
			for port := range uint16(90) {
				l.send(0, headertest.TCP(join(client4, 1000+port), join(ruleVIP, 80), headertest.SYN))
				_, p := l.out(l.workers[0].nic)
				got[p.Tuple.Dst.String()]++
			}
			switch by {
			case services.RoundRobin, services.LeastConn:
				if len(got) != 3 || got["10.0.1.21"] != 30 || got["10.0.1.22"] != 30 {
					t.Errorf("want equal shares: %v", got)
				}
			case services.SourceHash:
				if len(got) != 1 {
					t.Errorf("one client went to %v", got)
				}
			default:
				for ip, n := range got { // 30 each, 4.5 is a standard deviation
					if len(got) != 3 || n < 10 || n > 50 {
						t.Errorf("%s got %d of %v", ip, n, got)
					}
				}
			}
		})
	}
}

// TestNewFlowsDoNotAllocate: with any scheduler, pin, range or retry.
func TestNewFlowsDoNotAllocate(t *testing.T) {
	l := newLab(t, labConfig{flows: 1 << 16, edit: func(b *services.Builder) {
		crowd(b)
		b.Settings().RetryOther = true
	}})
	g := l.workers[0]
	open := func(frame []byte, source uint16) {
		binary.BigEndian.PutUint16(frame[34:], source)
		g.nic.Inject(frame)
		l.now += uint64(time.Millisecond)
		g.Step(l.now)
		g.nic.Loop()
		g.host.Loop()
	}
	for port := uint16(200); port < 222; port++ {
		frame := headertest.UDP(join(client4, 1), join(ruleVIP, port), "x").Bytes()
		frame[40], frame[41] = 0, 0 // no UDP checksum, so that ports may be changed freely
		source := uint16(2000)
		if n := testing.AllocsPerRun(200, func() { source++; open(frame, source) }); n != 0 {
			t.Errorf("port %d: %v allocations for a new flow", port, n)
		}
	}
	syn := headertest.TCP(join(client4, 1), join(ruleVIP, 120), headertest.SYN).Bytes()
	source := uint16(2000)
	if n := testing.AllocsPerRun(200, func() {
		source++
		// The sequence number's low word compensates the port in the checksum.
		binary.BigEndian.PutUint16(syn[40:], headertest.ISN&0xffff+1-source-1)
		for range 3 {
			open(syn, source)
			l.now += uint64(2 * time.Second)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a connection that moves", n)
	}
	if n := g.stats.FlowsRetried.Load(); n < 200 {
		t.Errorf("%d of 200 connections moved", n)
	}
	if g.stats.FlowsCreated.Load() < 12*200 {
		t.Errorf("%d flows made; drops %v", g.stats.FlowsCreated.Load(), l.drops())
	}
}
