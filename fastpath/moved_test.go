package fastpath_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// family has the addresses of a test that runs for both.
type family struct {
	name, client, vip, node, any, a, b, snat string
}

var families = []family{
	{"IPv4", client4, ruleVIP, node4, "0.0.0.0", backend4, second4, snat4},
	{"IPv6", client6, "2001:db8:f::60", "2001:db8:f::1", "::", backend6, "2001:db8:1::12", snat6},
}

const serviceA, serviceB services.ServiceID = 30, 31

// owns gives a frontend to a service whose only backend is ip:8080, with the service's number as
// index.
func owns(b *services.Builder, id services.ServiceID, kind services.FrontendKind, vip string, port uint16,
	proto uint8, ip string) *services.Frontend {
	s := services.Rule{Set: set(b, id, uint32(id), proto, ip)}
	f := &services.Frontend{Key: services.FrontendKey{Addr: addr(vip), Port: port, Proto: proto}, Kind: kind,
		Service: &services.Service{ID: id, Namespace: "default", Name: "moves", Proto: proto, Port: port,
			Backends: s.Set.Backends, Identity: uint64(id) << 32}, Outside: s, Pod: s}
	b.SetService(f.Service)
	b.SetFrontend(f)
	if kind != services.NodePort {
		b.SetAddr(addr(vip), b.Settings().Owned(addr(vip))|services.AddrVIP)
	}
	return f
}

// moveLab has service A with the UDP frontend vip:80, and service B with vip:81 and another
// backend. ask returns the backend that a client's datagram to a frontend reaches, and the packet
// that arrives there.
func moveLab(t *testing.T, f family, kind services.FrontendKind, vip string) *lab {
	return newLab(t, labConfig{workers: 2, edit: func(b *services.Builder) {
		b.SetAddr(addr(f.node), services.AddrNode)
		owns(b, serviceA, kind, vip, 80, header.ProtoUDP, f.a)
		owns(b, serviceB, kind, vip, 81, header.ProtoUDP, f.b)
	}})
}

func (l *lab) ask(client, to string) header.Tuple {
	l.t.Helper()
	l.send(0, headertest.UDP(client, to, "question"))
	_, p := l.out(l.workers[0].nic)
	return p.Tuple
}

// owners returns the services of the flows of a frontend.
func (l *lab) owners(frontend string) map[uint32]int {
	found := map[uint32]int{}
	for _, f := range l.dump() {
		if _, to := ends(&f.Client); to.String() == frontend {
			found[f.Service]++
		}
	}
	return found
}

func (l *lab) wantOwner(frontend string, id services.ServiceID) {
	l.t.Helper()
	if got := l.owners(frontend); len(got) != 1 || got[uint32(id)] == 0 {
		l.t.Errorf("flows of %s by service: %v, want those of %d alone", frontend, got, id)
	}
}

// TestUDPFollowsItsFrontend: a frontend moves from service A to service B; the endpoints of both
// serve all the time. The client keeps its port, and its next datagram goes to B's endpoint. A's
// endpoint may answer earlier requests for two seconds.
func TestUDPFollowsItsFrontend(t *testing.T) {
	for _, f := range families {
		exact := func(vip string, port uint16) services.FrontendKey {
			return services.FrontendKey{Addr: addr(vip), Port: port, Proto: header.ProtoUDP}
		}
		pods := map[services.ServiceID]string{serviceA: f.a, serviceB: f.b}
		type edit = func(*services.Builder)
		give := func(id services.ServiceID, kind services.FrontendKind, vip string, port uint16) edit {
			return func(b *services.Builder) { owns(b, id, kind, vip, port, header.ProtoUDP, pods[id]) }
		}
		drop := func(vip string, port uint16) edit {
			return func(b *services.Builder) { b.DeleteFrontend(exact(vip, port)) }
		}
		type edits = []edit
		for _, tt := range []struct {
			name  string
			kind  services.FrontendKind
			vip   string  // of the frontend's key
			to    string  // the client's destination
			first edits   // before the client asks
			steps []edits // each makes a snapshot
		}{
			{"a load balancer's address", services.LoadBalancer, f.vip, f.vip, nil,
				[]edits{{give(serviceB, services.LoadBalancer, f.vip, 80)}}},
			{"removed and given in one", services.LoadBalancer, f.vip, f.vip, nil,
				[]edits{{drop(f.vip, 80), give(serviceB, services.LoadBalancer, f.vip, 80)}}},
			{"without an owner in between", services.LoadBalancer, f.vip, f.vip, nil,
				[]edits{{drop(f.vip, 80)}, {give(serviceB, services.LoadBalancer, f.vip, 80)}}},
			{"an external IP", services.ExternalIP, f.vip, f.vip, nil,
				[]edits{{drop(f.vip, 80)}, {give(serviceB, services.ExternalIP, f.vip, 80)}}},
			{"from a load balancer to an external IP", services.LoadBalancer, f.vip, f.vip, nil,
				[]edits{{give(serviceB, services.ExternalIP, f.vip, 80)}}},
			{"a node port", services.NodePort, f.any, f.node, nil,
				[]edits{{drop(f.any, 80)}, {give(serviceB, services.NodePort, f.any, 80)}}},
			{"numbers of ports are exchanged", services.LoadBalancer, f.vip, f.vip, nil,
				[]edits{{give(serviceB, services.LoadBalancer, f.vip, 80),
					give(serviceA, services.LoadBalancer, f.vip, 81)}}},
			{"a node port loses an address to a load balancer", services.NodePort, f.any, f.node, nil,
				[]edits{{give(serviceB, services.LoadBalancer, f.node, 80)}}},
			{"a node port gets an address from a load balancer", services.NodePort, f.any, f.node, edits{
				give(serviceB, services.NodePort, f.any, 80), give(serviceA, services.LoadBalancer, f.node, 80)},
				[]edits{{drop(f.node, 80)}}},
			{"the address becomes the node's", services.LoadBalancer, f.vip, f.vip, edits{
				give(serviceB, services.NodePort, f.any, 80)},
				[]edits{{drop(f.vip, 80)}, {func(b *services.Builder) { b.SetAddr(addr(f.vip), services.AddrNode) }}}},
			{"the address is no longer the node's", services.NodePort, f.any, f.node, edits{
				give(serviceA, services.NodePort, f.any, 80)}, []edits{{
				func(b *services.Builder) { b.SetAddr(addr(f.node), services.AddrVIP) },
				give(serviceB, services.LoadBalancer, f.node, 80)}}},
		} {
			t.Run(f.name+"/"+tt.name, func(t *testing.T) {
				l := moveLab(t, f, tt.kind, tt.vip)
				l.publish(tt.first...)
				g := l.workers[0]
				client, to := join(f.client, 40000), join(tt.to, 80)
				was := l.ask(client, to)
				src, dst := ends(&was)
				if dst.String() != join(f.a, 8080) {
					t.Fatalf("the first datagram went to %v", dst)
				}
				for i, edits := range tt.steps {
					if i > 0 { // no service has the frontend yet
						if now := l.ask(client, to); now != was {
							t.Fatalf("a datagram before the frontend had another owner left as %v", now)
						}
					}
					l.publish(edits...)
				}

				answer := headertest.UDP(dst.String(), src.String(), "answer")
				for range 2 { // at both workers
					l.step(500 * time.Millisecond)
					l.send(1, answer)
					_, p := l.out(l.workers[1].nic)
					l.wantTuple(&p, to, client)
				}
				l.step(1100 * time.Millisecond)
				l.send(0, answer)
				l.nothing(g.nic, g.host)
				l.wantDrop(reason.BackendGone, 1)
				for range 3 {
					now := l.ask(client, to)
					if _, dst := ends(&now); dst.String() != join(f.b, 8080) {
						t.Fatalf("the client's next datagram goes to %v", dst)
					}
				}
				l.wantOwner(to, serviceB)
				if loads := l.table.Loads(); loads[serviceA].Load() != 0 || loads[serviceB].Load() != 1 {
					t.Errorf("flows of A's backend: %d, of B's: %d", loads[serviceA].Load(), loads[serviceB].Load())
				}
			})
		}
	}
}

// TestUDPOfAMovedFrontend: the result for a client's flow when its frontend moves to service B,
// which depends on B's decision about a new flow.
func TestUDPOfAMovedFrontend(t *testing.T) {
	const anew, stays = "scheduled again", "stays"
	for _, f := range families {
		pod := func(b *services.Builder) *services.Frontend { // gives B the pod that A also has
			return owns(b, serviceB, services.LoadBalancer, f.vip, 80, header.ProtoUDP, f.a)
		}
		for _, tt := range []struct {
			name   string
			change func(*services.Builder)
			pinned string // the backend that the client is pinned to for B
			want   string // or the drop
			from   string // the source that the backend sees
			to     string // the backend, if it gets one
		}{
			{"B has the same pod", func(b *services.Builder) { pod(b) }, "", stays, f.snat, f.a},
			{"A is gone, B has the pod", func(b *services.Builder) {
				pod(b)
				b.DeleteBackend(services.MakeBackendRef(uint32(serviceA), 1))
				b.DeleteService(serviceA)
			}, "", stays, f.snat, f.a},
			{"the pod by another port", func(b *services.Builder) {
				fr := pod(b)
				be := *b.Settings().Backend(fr.Outside.Set.Backends[0])
				be.Port = 9090
				b.SetBackend(be)
			}, "", anew, f.snat, f.a},
			{"B keeps the client's address", func(b *services.Builder) { pod(b).Outside.KeepClient = true }, "", anew,
				f.client, f.a},
			{"B has the PROXY protocol", func(b *services.Builder) {
				pod(b).Service.ProxyProtocol = true
			}, "", anew, f.snat, f.a},
			{"B has affinity", func(b *services.Builder) {
				pod(b).Service.AffinitySeconds = 60
			}, "", anew, f.snat, f.a},
			{"B has affinity, the client is pinned to the pod", func(b *services.Builder) {
				pod(b).Service.AffinitySeconds = 60
			}, f.a, stays, f.snat, f.a},
			{"B has separate rules for pods and others", func(b *services.Builder) {
				fr := pod(b)
				fr.Outside = services.Rule{Set: set(b, serviceB, 40, header.ProtoUDP, f.b)}
			}, "", anew, f.snat, f.b},
			{"B does not allow the client", func(b *services.Builder) { pod(b).Allowed = ranges("192.0.2.1/32") }, "",
				reason.SourceRangeDenied.String(), "", ""},
			{"B has no endpoint", func(b *services.Builder) { pod(b).Outside.Set = &services.EndpointSet{} }, "",
				reason.NoEndpoints.String(), "", ""},
			{"B has none here", func(b *services.Builder) {
				pod(b).Outside.Set = &services.EndpointSet{Empty: services.EmptyDrop}
			}, "", reason.NoLocalEndpoints.String(), "", ""},
			{"A gives other rules", func(b *services.Builder) {
				fr := owns(b, serviceA, services.LoadBalancer, f.vip, 80, header.ProtoUDP, f.a)
				fr.Allowed, fr.Outside.KeepClient = ranges("192.0.2.1/32"), true
			}, "", stays, f.snat, f.a},
			{"no service has it", func(b *services.Builder) {
				b.DeleteFrontend(services.FrontendKey{Addr: addr(f.vip), Port: 80, Proto: header.ProtoUDP})
			}, "", stays, f.snat, f.a},
		} {
			t.Run(f.name+"/"+tt.name, func(t *testing.T) {
				l := moveLab(t, f, services.LoadBalancer, f.vip)
				client, vip := join(f.client, 40000), join(f.vip, 80)
				first := l.ask(client, vip)
				src, dst := ends(&first)
				l.send(0, headertest.UDP(dst.String(), src.String(), "answer"))
				l.out(l.workers[0].nic)
				l.publish(tt.change)
				if tt.pinned != "" {
					l.pins.Confirm(flowtable.Time(l.now), addr(f.client), uint64(serviceB)<<32,
						affinity.Pin{Addr: addr(tt.pinned), Port: 8080}, 60)
				}
				said := l.explainer().Explain(tuple(header.ProtoUDP, client, vip), false, flowtable.Time(l.now))
				l.send(0, headertest.UDP(client, vip, "question"))
				if tt.to == "" {
					if got := l.drops(); got[tt.want] != 1 || said.Verdict.Reason.String() != tt.want {
						t.Errorf("drops %v, explained as %v", got, said.Verdict)
					}
					if got := l.owners(vip); len(got) != 0 {
						t.Errorf("flows by service: %v", got)
					}
					return
				}
				_, p := l.out(l.workers[0].nic)
				from, to := ends(&p.Tuple)
				if got := from.Addr().String(); got != tt.from || to.Addr().String() != tt.to {
					t.Errorf("went from %v to %v, want %v to %v", from, to, tt.from, tt.to)
				}
				if tt.want == stays && p.Tuple != first {
					t.Errorf("went as %v, before as %v", p.Tuple, first)
				}
				if said.Out.Dst != p.Tuple.Dst || said.Moved != (tt.want == anew) || said.Known != (tt.want == stays) &&
					said.Class.String() != "superseded" {
					t.Errorf("explained as %+v", said)
				}
				fr, ok := l.handle.Load().FrontendByKey(services.FrontendKey{Addr: addr(f.vip), Port: 80,
					Proto: header.ProtoUDP})
				if !ok {
					return
				}
				l.wantOwner(vip, fr.Service.ID)
				pin, _, _ := l.pins.Get(flowtable.Time(l.now), addr(f.client), fr.Service.Identity)
				if fr.Service.AffinitySeconds != 0 && pin.Addr != p.Tuple.Dst {
					t.Errorf("the client is pinned to %v", pin)
				}
			})
		}
	}
}

// TestTCPStaysWithItsService: a connection continues with the service that opened it, as with
// kube-proxy; the next connection goes to the new owner.
func TestTCPStaysWithItsService(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			l := newLab(t, labConfig{edit: func(b *services.Builder) {
				owns(b, serviceA, services.LoadBalancer, f.vip, 80, header.ProtoTCP, f.a)
			}})
			g := l.workers[0]
			client, vip := join(f.client, 40000), join(f.vip, 80)
			src, dst := l.begins(0, header.ProtoTCP, client, vip)
			l.answers(0, header.ProtoTCP, client, vip, src.String(), dst.String())
			l.publish(func(b *services.Builder) {
				owns(b, serviceB, services.LoadBalancer, f.vip, 80, header.ProtoTCP, f.b)
			})
			for range 3 {
				l.step(time.Minute)
				l.send(0, headertest.TCP(client, vip, headertest.ACK))
				_, p := l.out(g.nic)
				l.wantTuple(&p, src.String(), dst.String())
				l.send(0, headertest.TCP(dst.String(), src.String(), headertest.ACK))
				_, p = l.out(g.nic)
				l.wantTuple(&p, vip, client)
			}
			l.send(0, headertest.TCP(join(f.client, 40001), vip, headertest.SYN))
			_, p := l.out(g.nic)
			l.wantTuple(&p, "", join(f.b, 8080))
		})
	}
}

// TestMovedFrontendOnThePlainPath: when a frontend moves, flows of other frontends and flows that
// stay with their pod are bound again on the plain path. Only flows that must be scheduled again
// leave it.
func TestMovedFrontendOnThePlainPath(t *testing.T) {
	f := families[0]
	l := moveLab(t, f, services.LoadBalancer, f.vip)
	g := l.workers[0]
	const flows = 20
	packet := func(i, port uint16) *headertest.Packet {
		return headertest.UDP(join(f.client, 1000+i), join(f.vip, port), "x")
	}
	ask := func(port uint16) {
		for i := range uint16(flows) {
			g.nic.Inject(packet(i, port).Bytes())
		}
		l.step(time.Microsecond)
	}
	const counted = 3 // unanswered datagrams that the table counts, which take the slow path
	for _, port := range []uint16{80, 81} {
		for range counted {
			ask(port)
		}
	}
	g.nic.Loop()
	move := func(ip string) {
		l.publish(func(b *services.Builder) {
			owns(b, serviceB+1, services.LoadBalancer, f.vip, 80, header.ProtoUDP, ip)
		})
	}
	wantPlain := func(port uint16, want bool) {
		t.Helper()
		g.Judged()
		ask(port)
		if p := g.Judged(); (p.L3 == 0) != want {
			t.Errorf("port %d: on the plain path %v, want %v", port, p.L3 == 0, want)
		}
		for range flows {
			l.out(g.nic)
		}
	}
	move(f.a) // another service with the same pod
	wantPlain(80, true)
	wantPlain(81, true)
	l.wantOwner(join(f.vip, 80), serviceB+1)
	l.publish(func(b *services.Builder) {
		owns(b, serviceB+2, services.LoadBalancer, f.vip, 80, header.ProtoUDP, f.b)
	})
	wantPlain(81, true)
	for range counted {
		wantPlain(80, false)
	}
	wantPlain(80, true)
	l.wantOwner(join(f.vip, 80), serviceB+2)
	l.wantOwner(join(f.vip, 81), serviceB)
}

// The backend at which a connection begins, relative to the flow's.
const elsewhere, same, nowhere = "elsewhere", "at the same", "nowhere"

// TestReopenedAfterAChange: a client opens a connection on the tuple of one that was reset, as
// clients with fixed source ports do. It begins where a new flow may: not at a backend that has
// lost the frontend, takes no new flows, or no flows of this client. A live connection keeps its
// backend: the backend answers the SYN with a challenge ACK.
func TestReopenedAfterAChange(t *testing.T) {
	moves := func(f family) func(b *services.Builder) {
		return func(b *services.Builder) {
			owns(b, serviceB, services.LoadBalancer, f.vip, 80, header.ProtoTCP, f.b)
		}
	}
	shared := func(f family) func(b *services.Builder) {
		return func(b *services.Builder) {
			owns(b, serviceB, services.LoadBalancer, f.vip, 80, header.ProtoTCP, f.a)
		}
	}
	edited := func(edit func(f family, fr *services.Frontend)) func(family) func(*services.Builder) {
		return func(f family) func(*services.Builder) {
			return func(b *services.Builder) {
				fr := owns(b, serviceA, services.LoadBalancer, f.vip, 80, header.ProtoTCP, f.a)
				edit(f, fr)
				b.SetService(fr.Service)
				b.SetFrontend(fr)
			}
		}
	}
	for _, test := range []struct {
		name string
		edit func(family) func(*services.Builder)
		live bool
		want string
	}{
		{"nothing changed", nil, false, same},
		{"the frontend moved", moves, false, elsewhere},
		{"the frontend moved, and the connection lives", moves, true, same},
		{"the frontend moved to a service with the same backend", shared, false, same},
		{"the same, and the connection lives", shared, true, same},
		{"the backend takes no new flows", func(f family) func(*services.Builder) {
			return func(b *services.Builder) {
				fr := owns(b, serviceA, services.LoadBalancer, f.vip, 80, header.ProtoTCP, f.a)
				other := services.Rule{Set: set(b, serviceA, 99, header.ProtoTCP, f.b)}
				fr.Service.Backends = append(slices.Clone(fr.Service.Backends), other.Set.Backends...)
				fr.Outside, fr.Pod = other, other
				b.SetService(fr.Service)
				b.SetFrontend(fr)
			}
		}, false, elsewhere},
		{"there is no endpoint for new flows", edited(func(_ family, fr *services.Frontend) {
			fr.Outside.Set, fr.Pod.Set = &services.EndpointSet{}, &services.EndpointSet{}
		}), false, nowhere},
		{"the client is not in the source ranges", edited(func(_ family, fr *services.Frontend) {
			fr.Allowed = services.NewPrefixes([]netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")})
		}), false, nowhere},
		{"the backend gets a header", edited(func(_ family, fr *services.Frontend) {
			fr.Service.ProxyProtocol = true
		}), false, elsewhere},
		{"the backend sees the client", edited(func(_ family, fr *services.Frontend) {
			fr.Outside.KeepClient, fr.Pod.KeepClient = true, true
		}), false, elsewhere},
	} {
		for _, f := range families {
			t.Run(test.name+", "+f.name, func(t *testing.T) { reopenAfter(t, f, test.edit, test.live, test.want) })
		}
	}
}

func reopenAfter(t *testing.T, f family, edit func(family) func(*services.Builder), live bool, want string) {
	l := newLab(t, labConfig{edit: func(b *services.Builder) {
		owns(b, serviceA, services.LoadBalancer, f.vip, 80, header.ProtoTCP, f.a)
	}})
	g := l.workers[0]
	client, vip := join(f.client, 40000), join(f.vip, 80)
	src, dst := l.begins(0, header.ProtoTCP, client, vip)
	l.answers(0, header.ProtoTCP, client, vip, src.String(), dst.String())
	answer := func(flags uint8) bool {
		l.send(0, headertest.TCP(dst.String(), src.String(), flags))
		_, ok := g.nic.Take(nil)
		return ok
	}
	if !live {
		l.send(0, headertest.TCP(client, vip, headertest.RST|headertest.ACK))
		l.out(g.nic)
	}
	l.step(10 * time.Second)
	if edit != nil {
		l.publish(edit(f))
	}
	if x := l.explainer().Explain(tuple(header.ProtoTCP, client, vip), true, flowtable.Time(l.now)); !x.Known ||
		!live && (x.MayNotBegin != (want != same) || x.Retry != x.MayNotBegin ||
			x.MayNotBegin && (x.Instead.Action == decide.Queued) != (want == elsewhere)) {
		t.Errorf("explained: %v", x.Steps())
	}
	got := nowhere
	for _, wait := range []time.Duration{time.Second, time.Second, 2 * time.Second} {
		l.send(0, headertest.TCP(client, vip, headertest.SYN))
		_, p := l.out(g.nic)
		if from, to := ends(&p.Tuple); to != dst || from != src {
			got = elsewhere
			break
		}
		flags := uint8(headertest.SYN | headertest.ACK)
		if live {
			flags = headertest.ACK
		}
		if answer(flags) {
			got = same
			break
		}
		l.step(wait)
	}
	if got != want {
		t.Errorf("the connection begins %s, want %s: %v", got, want, l.drops())
	}
	switch {
	case want != same:
	case live || edit == nil:
		l.wantOwner(vip, serviceA)
	default:
		l.wantOwner(vip, serviceB)
	}
}

// TestThirdSYNHasLimits: a client at its limit of connections opens one on the tuple of a reset
// connection whose backend takes no new flows. No backend gets it.
func TestThirdSYNHasLimits(t *testing.T) {
	f := families[0]
	owner := func(b *services.Builder, to string, id uint32) {
		fr := owns(b, serviceA, services.LoadBalancer, f.vip, 80, header.ProtoTCP, f.a)
		other := services.Rule{Set: set(b, serviceA, id, header.ProtoTCP, to)}
		fr.Service.Backends = append(slices.Clone(fr.Service.Backends), other.Set.Backends...)
		fr.Outside, fr.Pod, fr.Service.Limits = other, other, services.Limits{SourceConnections: 1}
		b.SetService(fr.Service)
		b.SetFrontend(fr)
	}
	l := newLab(t, labConfig{edit: func(b *services.Builder) { owner(b, f.a, 30) }})
	g := l.workers[0]
	vip := join(f.vip, 80)
	l.stands(0, header.ProtoTCP, join(f.client, 40000), vip)
	l.send(0, headertest.TCP(join(f.client, 40000), vip, headertest.RST|headertest.ACK))
	l.out(g.nic)
	l.step(time.Second)
	l.publish(func(b *services.Builder) { owner(b, f.b, 99) })
	l.stands(0, header.ProtoTCP, join(f.client, 40001), vip)
	for _, wait := range []time.Duration{time.Second, time.Second, 2 * time.Second} {
		l.send(0, headertest.TCP(join(f.client, 40000), vip, headertest.SYN))
		l.nothing(g.nic, g.host)
		l.step(wait)
	}
	l.wantDrop(reason.LimitSourceConnections, 3)
}
