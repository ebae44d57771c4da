package fastpath_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/nat/vxlan"
)

// The tunnel of the lab, and addresses of nodes.
var labTunnel = vxlan.Tunnel{VNI: 0x123456, Port: 4789}

const (
	node1, node2, node3 = "10.0.1.21", "10.0.1.22", "10.0.1.23"
	node61              = "2001:db8:1::21"
	directService       = 40
)

// direct makes the Services at both VIPs direct, with a backend for each node. The sets have the
// nodes of ready. Numbers of backends follow from the nodes, so they stay the same between
// snapshots.
func direct(nodes []string, ready []string) func(*services.Builder) {
	return directBy(directService, nodes, ready)
}

// directBy is direct with other numbers, from first on.
func directBy(first services.ServiceID, nodes []string, ready []string) func(*services.Builder) {
	return func(b *services.Builder) {
		id := first
		for _, front := range []services.FrontendKey{
			{Addr: addr(vip4), Port: 80, Proto: header.ProtoTCP}, {Addr: addr(vip4), Port: 53, Proto: header.ProtoUDP},
			{Addr: addr(vip6), Port: 80, Proto: header.ProtoTCP}, {Addr: addr(vip6), Port: 53, Proto: header.ProtoUDP},
		} {
			svc := &services.Service{ID: id, Namespace: "default", Name: "direct", Proto: front.Proto, Port: front.Port,
				Direct: true}
			set := &services.EndpointSet{}
			for i, n := range nodes {
				be := backend(uint32(id)+uint32(10*i), id, n, front.Port, front.Proto)
				if svc.Backends = append(svc.Backends, be.Ref); slices.Contains(ready, n) {
					set.Backends = append(set.Backends, be.Ref)
				} else {
					be.Flags, be.Weight = 0, 0
				}
				b.SetBackend(be)
			}
			b.SetService(svc)
			b.SetFrontend(&services.Frontend{Key: front, Service: svc, Outside: services.Rule{Set: set}})
			id++
		}
	}
}

// tunnelLab is a lab whose Services are direct and whose nodes are ready.
func tunnelLab(t testing.TB, c labConfig, nodes ...string) *lab {
	t.Helper()
	c.edit, c.sources = direct(nodes, nodes), true
	return newLab(t, c)
}

// inner checks the outer headers of a sent frame, and returns the inner frame, the outer
// destination and the UDP source port.
func inner(t testing.TB, frame []byte, outer *header.Packet) (in []byte, node string, port uint16) {
	t.Helper()
	src := snat4
	if outer.Tuple.V6 {
		src = snat6
	}
	if outer.Tuple.Proto != header.ProtoUDP || outer.Tuple.DstPort != labTunnel.Port || outer.Tuple.SrcPort < 49152 ||
		outer.Tuple.Src != addr(src) || outer.TTL != 64 {
		t.Fatalf("outer header %+v", outer)
	}
	if [6]byte(frame[:6]) != macBackend || [6]byte(frame[6:12]) != macOurs {
		t.Fatalf("outer MAC addresses %x", frame[:12])
	}
	v := frame[outer.L4+header.UDPBytes:]
	if v[0] != 0x08 || binary.BigEndian.Uint32(v[4:])>>8 != labTunnel.VNI {
		t.Fatalf("VXLAN header %x", v[:8])
	}
	in = v[8 : outer.End-outer.L4-header.UDPBytes]
	if [6]byte(in[:6]) != vxlan.NodeMAC || [6]byte(in[6:12]) != vxlan.GatewayMAC {
		t.Fatalf("inner MAC addresses %x", in[:12])
	}
	if err := headertest.Verify(in); err != nil {
		t.Fatalf("inner frame %x: %v", in, err)
	}
	return in, outer.Tuple.Dst.Netip().String(), outer.Tuple.SrcPort
}

// toNode sends a packet and returns the inner frame, and the node.
func (l *lab) toNode(p *headertest.Packet) ([]byte, string) {
	l.t.Helper()
	l.send(0, p)
	frame, outer := l.out(l.workers[0].nic)
	in, node, _ := inner(l.t, frame, &outer)
	return in, node
}

// TestTunnel: a packet of a direct Service reaches the node as it came, with one hop less, over
// both families outside and inside.
func TestTunnel(t *testing.T) {
	for _, tt := range []struct{ client, vip, node string }{
		{client4, vip4, node1}, {client4, vip4, node61}, {client6, vip6, node1}, {client6, vip6, node61},
	} {
		t.Run(tt.vip+" by "+tt.node, func(t *testing.T) {
			l := tunnelLab(t, labConfig{}, tt.node)
			packets := []*headertest.Packet{
				headertest.TCP(join(tt.client, 40000), join(tt.vip, 80), headertest.SYN),
				headertest.TCP(join(tt.client, 40000), join(tt.vip, 80), headertest.ACK),
				headertest.UDP(join(tt.client, 40001), join(tt.vip, 53), "question"),
			}
			packets[1].Payload, packets[1].TOS = bytes.Repeat([]byte("x"), 1201), 0x2d
			packets[1].DF = true
			for i, p := range packets {
				got, node := l.toNode(p)
				want := p.Bytes()
				copy(want[:12], got[:12])
				if p.Src.Is4() {
					want[14+8]--
					headertest.SealIPv4(want)
				} else {
					want[14+7]--
				}
				if node != tt.node || !bytes.Equal(got, want) {
					t.Errorf("packet %d: %s got\n%x, want\n%x", i, node, got, want)
				}
			}
			l.nothing(l.workers[0].nic, l.workers[0].host)
			if d := l.drops(); len(d) != 0 {
				t.Errorf("drops: %v", d)
			}
			if n := l.table.Counts(); n.Live != [2]uint64{2, 0} && n.Live != [2]uint64{0, 2} {
				t.Errorf("flows: %v", n.Live)
			}
		})
	}
}

// TestTunnelStays: established flows stay with their node when the set of nodes changes and when
// their node takes no new flows; new flows go to ready nodes.
func TestTunnelStays(t *testing.T) {
	all := []string{node1, node2, node3}
	l := tunnelLab(t, labConfig{}, all...)
	const flows = 60
	at := map[int]string{}
	count := map[string]int{}
	segment := func(i int, flags uint8) *headertest.Packet {
		return headertest.TCP(join(client4, uint16(40000+i)), join(vip4, 80), flags)
	}
	for i := range flows {
		_, at[i] = l.toNode(segment(i, headertest.SYN))
		l.toNode(segment(i, headertest.ACK))
		count[at[i]]++
	}
	for _, n := range all {
		if count[n] < flows/6 {
			t.Errorf("%s has %d of %d flows", n, count[n], flows)
		}
	}
	fresh := flows
	for _, ready := range [][]string{{node1}, {node2}, all, {node3}} {
		l.publish(direct(all, ready))
		for i := range flows {
			if _, node := l.toNode(segment(i, headertest.ACK)); node != at[i] {
				t.Fatalf("flow %d moved from %s to %s", i, at[i], node)
			}
		}
		fresh++
		if _, node := l.toNode(segment(fresh, headertest.SYN)); !slices.Contains(ready, node) {
			t.Errorf("a new flow went to %s, ready are %v", node, ready)
		}
	}
	if got := l.table.Counts().States[flowtable.Unconfirmed]; got != flows {
		t.Errorf("%d unconfirmed flows, want %d", got, flows)
	}
}

// TestTunnelWithoutRecord: a gateway with an empty table sends packets in the middle of connections
// to the nodes that another gateway chose, and resets no connection. The same holds if the first
// node lost its endpoints during the handshake, and, with affinity, if the nodes changed after the
// client's former connection.
func TestTunnelWithoutRecord(t *testing.T) {
	all := []string{node1, node2, node3}
	segment := func(client, port int, flags uint8) *headertest.Packet {
		return headertest.TCP(join(fmt.Sprint("198.51.100.", client), uint16(port)), join(vip4, 80), flags)
	}
	for name, open := range map[string]func(l *lab, publish func(...func(*services.Builder)), client int) string{
		"at once": func(l *lab, _ func(...func(*services.Builder)), client int) string {
			_, node := l.toNode(segment(client, 40000, headertest.SYN))
			return node
		},
		"by the third SYN": func(l *lab, publish func(...func(*services.Builder)), client int) (node string) {
			publish(direct(all, all[:1]))
			for _, pause := range []time.Duration{1, 2, 4} {
				_, node = l.toNode(segment(client, 40000, headertest.SYN))
				publish(direct(all, all[1:]))
				l.step(pause * time.Second)
			}
			return node
		},
		"with affinity": func(l *lab, publish func(...func(*services.Builder)), client int) string {
			publish(direct(all, all[:1]), sticky)
			l.toNode(segment(client, 39999, headertest.SYN))
			publish(direct(all, all), sticky)
			_, node := l.toNode(segment(client, 40000, headertest.SYN))
			return node
		},
	} {
		t.Run(name, func(t *testing.T) {
			one, other := tunnelLab(t, labConfig{}, all...), tunnelLab(t, labConfig{}, all...)
			publish := func(edits ...func(*services.Builder)) {
				one.publish(edits...)
				other.publish(edits...)
			}
			for client := range 100 {
				node := open(one, publish, 1+client)
				if _, got := other.toNode(segment(1+client, 40000, headertest.ACK)); node != got {
					t.Errorf("client %d: %s, without a record %s", client, node, got)
				}
			}
			other.nothing(other.workers[0].nic)
		})
	}
}

// sticky gives the direct Service at port 80 session affinity.
func sticky(b *services.Builder) {
	f, _ := b.Settings().FrontendByKey(services.FrontendKey{Addr: addr(vip4), Port: 80, Proto: header.ProtoTCP})
	svc := *f.Service
	svc.AffinitySeconds, svc.Identity = 60, 7
	next := *f
	next.Service = &svc
	b.SetService(&svc)
	b.SetFrontend(&next)
}

// restarts returns a function that opens a flow table for a lab, and again as after kill -9.
func restarts(t *testing.T) func() *flowtable.Table {
	path := filepath.Join(t.TempDir(), "flows")
	return func() *flowtable.Table {
		if b, err := os.ReadFile(path); err == nil { // as in proxyLab.kill
			path += "+"
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f, err := flowtable.OpenFile(path, flowtable.Config{IPv4Flows: 256, IPv6Flows: 256,
			Timeouts: flowtable.DefaultTimeouts()}, flowtable.Time(time.Hour), flowtable.ResizeFit)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f.Table
	}
}

// TestTunnelRestart: after kill -9 flows are with their nodes, although these no longer take new
// flows. The words of the second nodes' addresses have the same exclusive or.
func TestTunnelRestart(t *testing.T) {
	for _, all := range [][]string{{node1, node2, node61}, {"2001:db8:1::1:0:2", "2001:db8:1::2:0:1"}} {
		t.Run(fmt.Sprint(all), func(t *testing.T) { testTunnelRestart(t, all) })
	}
}

func testTunnelRestart(t *testing.T, all []string) {
	table := restarts(t)
	l := tunnelLab(t, labConfig{table: table()}, all...)
	at := map[int]string{}
	for i := range 40 {
		_, at[i] = l.toNode(headertest.TCP(join(client4, uint16(40000+i)), join(vip4, 80), headertest.SYN))
		l.toNode(headertest.TCP(join(client4, uint16(40000+i)), join(vip4, 80), headertest.ACK))
	}
	l = tunnelLab(t, labConfig{table: table()}, all...)
	for _, ready := range all[:2] {
		l.publish(direct(all, []string{ready}))
		for i := range 40 {
			_, node := l.toNode(headertest.TCP(join(client4, uint16(40000+i)), join(vip4, 80), headertest.ACK))
			if node != at[i] {
				t.Fatalf("flow %d moved from %s to %s", i, at[i], node)
			}
		}
	}
}

// TestTunnelNodeGone: flows of a node that is gone find another one, and a UDP flow leaves a node
// without a serving endpoint.
func TestTunnelNodeGone(t *testing.T) {
	table, log := loggedTable(t)
	l := tunnelLab(t, labConfig{table: table}, node1)
	tcp := headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.ACK)
	udp := headertest.UDP(join(client4, 40000), join(vip4, 53), "question")
	l.toNode(tcp)
	l.toNode(udp)
	l.publish(direct([]string{node1, node2}, []string{node2}))
	if _, node := l.toNode(tcp); node != node1 {
		t.Errorf("TCP: %s", node)
	}
	if _, node := l.toNode(udp); node != node2 {
		t.Errorf("UDP: %s", node)
	}
	l.publish(func(b *services.Builder) {
		b.DeleteBackend(services.MakeBackendRef(directService, 1))
	})
	if _, node := l.toNode(tcp); node != node2 {
		t.Errorf("TCP after its node is gone: %s", node)
	}
	ends := 0
	log.Read(func(e *flowtable.Event) {
		if e.Begins {
			return
		}
		if ends++; e.Ended != flowtable.EndEndpointGone {
			t.Errorf("a flow of protocol %d ends by %v", e.Proto, e.Ended)
		}
	})
	if ends != 2 {
		t.Errorf("%d flows ended, want 2", ends)
	}
}

// TestTunnelStaysWithItsService: as TestTCPStaysWithItsService, with direct return. The connection
// stays with its node, also if its Service is gone and another direct one has the frontend, and the
// client's next connection goes to the new owner. A UDP flow goes there at once.
func TestTunnelStaysWithItsService(t *testing.T) {
	all := []string{node1, node2}
	for name, tt := range map[string]struct {
		change func(*services.Builder)
		tcp    string // where the next connection goes
		udp    string
	}{
		"to a translated one": {func(b *services.Builder) {
			owns(b, serviceA, services.LoadBalancer, vip4, 80, header.ProtoTCP, second4)
			owns(b, serviceB, services.LoadBalancer, vip4, 53, header.ProtoUDP, second4)
		}, second4, second4},
		"to a direct one": {directBy(60, all, []string{node2}), node2, node2},
		"to a direct one, as the first is deleted": {func(b *services.Builder) {
			directBy(60, all, []string{node2})(b)
			for id := services.ServiceID(directService); id < directService+4; id++ {
				b.DeleteService(id)
				for i := range all {
					b.DeleteBackend(services.MakeBackendRef(uint32(id)+uint32(10*i), 1))
				}
			}
		}, node2, node2},
	} {
		t.Run(name, func(t *testing.T) {
			l := tunnelLab(t, labConfig{}, node1)
			l.publish(direct(all, []string{node1}))
			segment := func(flags uint8) *headertest.Packet {
				return headertest.TCP(join(client4, 40000), join(vip4, 80), flags)
			}
			goesTo := func(p *headertest.Packet) string {
				t.Helper()
				l.send(0, p)
				frame, h := l.out(l.workers[0].nic)
				if _, dst := ends(&h.Tuple); dst.Port() != labTunnel.Port {
					return dst.Addr().String()
				}
				_, node, _ := inner(t, frame, &h)
				return node
			}
			udp := headertest.UDP(join(client4, 40000), join(vip4, 53), "question")
			for _, p := range []*headertest.Packet{segment(headertest.SYN), segment(headertest.ACK), udp} {
				if node := goesTo(p); node != node1 {
					t.Fatalf("before: %s", node)
				}
			}
			l.publish(tt.change)
			for generation := uint32(8); generation < 10; generation++ {
				if node := goesTo(segment(headertest.ACK)); node != node1 {
					t.Fatalf("the connection goes to %s: %v", node, l.drops())
				}
				l.hops.Publish(&nexthop.View{Generation: generation, Routes: l.hops.View().Routes})
			}
			if got := goesTo(udp); got != tt.udp {
				t.Errorf("UDP goes to %s, want %s", got, tt.udp)
			}
			goesTo(segment(headertest.FIN | headertest.ACK))
			if got := goesTo(segment(headertest.SYN)); got != tt.tcp {
				t.Errorf("the next connection goes to %s, want %s", got, tt.tcp)
			}
		})
	}
}

// TestTunnelServiceDeleted: a connection whose Service is deleted has no node any more. Each of its
// segments gets an RST, because one may be lost, until the client opens another connection or, as
// after an RST of the client, four minutes later. If the Service returns meanwhile, so does the
// connection to its node. It is the same if a Node is deleted and no other one has endpoints.
func TestTunnelServiceDeleted(t *testing.T) {
	clears := func(b *services.Builder) {
		for id := services.ServiceID(directService); id < directService+4; id++ {
			b.DeleteBackend(services.MakeBackendRef(uint32(id), 1))
			b.DeleteService(id)
		}
	}
	frontends := func(b *services.Builder) {
		for _, vip := range []string{vip4, vip6} {
			b.DeleteFrontend(services.FrontendKey{Addr: addr(vip), Port: 80, Proto: header.ProtoTCP})
			b.DeleteFrontend(services.FrontendKey{Addr: addr(vip), Port: 53, Proto: header.ProtoUDP})
		}
	}
	for name, change := range map[string]func(*services.Builder){
		"its Service, and no other has the VIP": func(b *services.Builder) {
			clears(b)
			frontends(b)
			b.SetAddr(addr(vip4), 0)
			b.SetAddr(addr(vip6), 0)
		},
		"its Service, and another has the VIP": func(b *services.Builder) {
			clears(b)
			frontends(b)
			b.Settings().UnservedPort = services.UnservedReject
		},
		"its Node": func(b *services.Builder) {
			clears(b)
			direct(nil, nil)(b)
		},
	} {
		for _, e := range []struct{ client, vip, node string }{{client4, vip4, node1}, {client6, vip6, node61}} {
			t.Run(name+" to "+e.vip, func(t *testing.T) {
				table, log := loggedTable(t)
				l := tunnelLab(t, labConfig{table: table}, e.node)
				g, from, to := l.workers[0], join(e.client, 40000), join(e.vip, 80)
				segment := func(flags uint8) *headertest.Packet { return headertest.TCP(from, to, flags) }
				data := segment(headertest.ACK)
				data.Payload, data.Ack = []byte("data"), 7007
				goesOn := func() {
					t.Helper()
					if _, node := l.toNode(data); node != e.node {
						t.Fatalf("the connection goes to %s", node)
					}
				}
				isReset := func() {
					t.Helper()
					x := l.explainer().Explain(tuple(header.ProtoTCP, from, to), false, flowtable.Time(l.now))
					before := l.drops()[reason.BackendGone.String()]
					l.send(0, data)
					frame, h := l.out(g.nic)
					l.wantTuple(&h, to, from)
					if s := readSegment(frame); s.flags != headertest.RST || s.seq != data.Ack {
						t.Errorf("the client gets %+v, want an RST", s)
					}
					l.nothing(g.nic, g.host)
					if n := l.drops()[reason.BackendGone.String()]; n != before+1 || !x.Reset ||
						x.Verdict.Reason != reason.BackendGone {
						t.Errorf("drops %v, explained: %v", l.drops(), x.Steps())
					}
				}
				l.toNode(segment(headertest.SYN))
				goesOn()
				udp := headertest.UDP(from, join(e.vip, 53), "question")
				l.toNode(udp)
				l.publish(change)
				isReset()
				l.publish(direct([]string{e.node}, []string{e.node}))
				goesOn()
				l.publish(change)
				for range 3 {
					isReset()
					l.step(time.Second)
				}
				l.send(0, segment(headertest.RST)) // is not answered
				l.send(0, udp)
				for range 300 { // sweeps the table
					l.step(time.Second)
				}
				want := map[uint8]flowtable.End{
					header.ProtoTCP: flowtable.EndTimeout, header.ProtoUDP: flowtable.EndEndpointGone,
				}
				log.Read(func(e *flowtable.Event) {
					if e.Begins || e.Ended != want[e.Proto] {
						return
					}
					delete(want, e.Proto)
					if e.Proto == header.ProtoTCP && (!e.Reset || e.ResetBy != flowtable.ReplySide) {
						t.Errorf("the connection's end is %+v", e)
					}
				})
				if len(want) > 0 {
					t.Errorf("no end of %v", want)
				}
			})
		}
	}
}

// TestNodeOfALargeService: the node of a flow of an earlier process is found in about the same time
// among 50,000 nodes as among 1,000. Figures are minima, as in TestGoneEndpointOfALargeService.
func TestNodeOfALargeService(t *testing.T) {
	const rounds, bound = 300, 8
	client := tuple(header.ProtoTCP, join(client4, 40000), join(vip4, 80))
	for _, format := range []string{"10.%d.%d.%d", "2001:db8::%x:%x:%x"} {
		spent := map[int]time.Duration{}
		for _, n := range []int{1000, 50_000} {
			nodes := make([]string, n)
			for i := range nodes {
				nodes[i] = fmt.Sprintf(format, 100, i>>8, i&255)
			}
			b := services.NewBuilder(nil)
			svc := &services.Service{ID: 1, Proto: header.ProtoTCP, Port: 80, Direct: true}
			for i, node := range nodes {
				be := backend(uint32(1+i), 1, node, 80, header.ProtoTCP)
				svc.Backends = append(svc.Backends, be.Ref)
				b.SetBackend(be)
			}
			b.SetService(svc)
			key := services.FrontendKey{Addr: addr(vip4), Port: 80, Proto: header.ProtoTCP}
			b.SetFrontend(&services.Frontend{Key: key, Service: svc,
				Outside: services.Rule{Set: &services.EndpointSet{Backends: svc.Backends[:1]}}})
			snapshot, last := b.Build(), addr(nodes[n-1])
			least := time.Hour
			for range rounds {
				began := time.Now()
				_, ref := decide.AdoptDirect(snapshot, &client, flowtable.NodeMark(&last))
				least = min(least, time.Since(began))
				if be := snapshot.Backend(services.BackendRef(ref)); be == nil || be.Addr != last {
					t.Fatalf("%v is found for node %v", be, last)
				}
			}
			spent[n] = least
		}
		t.Logf("%s: %v with 1,000 nodes, %v with 50,000", format, spent[1000], spent[50_000])
		if spent[50_000] > bound*spent[1000] {
			t.Errorf("%s: %v with 50,000 nodes, %v with 1,000", format, spent[50_000], spent[1000])
		}
	}
}

// TestTunnelReopened: a client that uses the port of a connection that it has closed or reset gets
// a node that serves, with its first SYN. While the node serves, the new connection stays there, so
// that a forged FIN and SYN move none.
func TestTunnelReopened(t *testing.T) {
	for name, end := range map[string]uint8{"FIN": headertest.FIN | headertest.ACK, "RST": headertest.RST} {
		t.Run(name, func(t *testing.T) {
			all := []string{node1, node2}
			l := tunnelLab(t, labConfig{}, node1)
			l.publish(direct(all, []string{node1}))
			send := func(flags uint8, want string) {
				t.Helper()
				p := headertest.TCP(join(client4, 40000), join(vip4, 80), flags)
				if _, node := l.toNode(p); node != want {
					t.Errorf("flags %#x: %s, want %s", flags, node, want)
				}
			}
			send(headertest.SYN, node1)
			send(headertest.ACK, node1)
			send(end, node1)
			x := l.explainer().Explain(tuple(header.ProtoTCP, join(client4, 40000), join(vip4, 80)), false,
				flowtable.Time(l.now))
			if text := fmt.Sprint(x.Steps()); strings.Contains(text, "after a FIN of its client") != (name == "FIN") ||
				strings.Contains(text, "after an RST") != (name == "RST") {
				t.Errorf("after a %s: %s", name, text)
			}
			l.publish(direct(all, all))
			send(headertest.SYN, node1)
			send(headertest.ACK, node1)
			l.publish(direct(all, []string{node2}))
			send(headertest.ACK, node1)
			send(headertest.SYN, node1) // the connection may exist
			send(headertest.ACK, node1)
			send(end, node1)
			send(headertest.SYN, node2)
			send(headertest.ACK, node2)
		})
	}
}

// TestTunnelMTU: a packet that does not fit into the tunnel is answered with the MTU inside, or
// fragmented outside where its sender allows it. 1450 bytes and 1430 bytes are what VXLAN leaves of
// 1500.
func TestTunnelMTU(t *testing.T) {
	for _, tt := range []struct {
		client, vip, node string
		bytes             int // of the IP packet
		df                bool
		mtu               uint32 // announced
		fragments         int
	}{
		{client4, vip4, node1, 1450, true, 0, 1},
		{client4, vip4, node1, 1451, true, 1450, 0},
		{client4, vip4, node1, 1450, false, 0, 1},
		{client4, vip4, node1, 1500, false, 0, 2},
		{client4, vip4, node61, 1430, true, 0, 1},
		{client4, vip4, node61, 1431, true, 1430, 0},
		{client4, vip4, node61, 1431, false, 0, 0},
		{client6, vip6, node1, 1450, true, 0, 1},
		{client6, vip6, node1, 1451, true, 1450, 0},
		{client6, vip6, node61, 1431, true, 1430, 0},
	} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			l := tunnelLab(t, labConfig{}, tt.node)
			p := headertest.UDP(join(tt.client, 40000), join(tt.vip, 53), "")
			p.DF = tt.df
			p.Payload = make([]byte, tt.bytes-len(headertest.IP(p.Bytes())))
			l.send(0, p)
			if tt.mtu != 0 {
				frame, answer := l.out(l.workers[0].nic)
				if mtu, ok := header.PathMTU(frame, &answer); !ok || mtu != tt.mtu ||
					answer.Tuple.Dst != addr(tt.client) || answer.Tuple.Src != addr(tt.vip) {
					t.Fatalf("answer %+v, MTU %d", answer.Tuple, mtu)
				}
			}
			if tt.fragments == 0 {
				l.wantDrop(reason.PacketTooBig, 1)
				l.nothing(l.workers[0].nic)
				return
			}
			whole := make([]byte, 65536)
			n := 0
			for range tt.fragments {
				frame, outer := l.out(l.workers[0].nic)
				if n := outer.End - outer.L3; n > 1500 {
					t.Errorf("%d bytes", n)
				}
				at := 0
				if !outer.Tuple.V6 {
					at = int(binary.BigEndian.Uint16(frame[outer.L3+6:])&0x1fff) * 8
				}
				n += copy(whole[at:], frame[outer.L3+header.IPv4Bytes:outer.End])
				if whole := binary.BigEndian.Uint16(frame[outer.L3+6:]) == 0x4000; whole != (tt.fragments == 1) &&
					!outer.Tuple.V6 {
					t.Errorf("fragment field %x", frame[outer.L3+6:outer.L3+8])
				}
			}
			l.nothing(l.workers[0].nic)
			if tt.fragments > 1 && !bytes.Equal(whole[n-tt.bytes+20:n], p.Bytes()[34:]) {
				t.Error("the fragments are not the packet")
			}
		})
	}
}

// TestTunnelLong: a packet in several frames keeps all of them.
func TestTunnelLong(t *testing.T) {
	l := tunnelLab(t, labConfig{long: true}, node1)
	g := l.workers[0]
	p := headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.ACK)
	p.Payload, p.DF = bytes.Repeat([]byte("0123456789"), 130), true
	frame := p.Bytes()
	if !g.nic.InjectParts(frame[:600], frame[600:900], frame[900:]) {
		t.Fatal("the link took no more packets")
	}
	l.step(time.Microsecond)
	sent, outer := l.out(g.nic)
	in, node, _ := inner(t, sent, &outer)
	if node != node1 || !bytes.Equal(in[34:], frame[34:]) {
		t.Errorf("%s got %x, want %x", node, in, frame)
	}
}

// TestTunnelICMP: an ICMP error about a node's reply reaches the node that sent it, with and
// without a flow.
func TestTunnelICMP(t *testing.T) {
	all := []string{node1, node2, node3}
	l := tunnelLab(t, labConfig{}, all...)
	for i := range 30 {
		from := join(client4, uint16(40000+i))
		reply := headertest.TCP(join(vip4, 80), from, headertest.ACK)
		reply.Payload, reply.DF = make([]byte, 1400), true
		tooBig := headertest.ICMPError("198.51.100.1", vip4, 3, 4, 1280, reply.Bytes(), 28)
		_, without := l.toNode(tooBig)
		_, node := l.toNode(headertest.TCP(from, join(vip4, 80), headertest.SYN))
		in, with := l.toNode(tooBig)
		want := tooBig.Bytes()
		want[14+8]--
		headertest.SealIPv4(want)
		if with != node || without != node || !bytes.Equal(in[14:], want[14:]) {
			t.Errorf("flow %d: node %s, errors %s and %s\n%x, want\n%x", i, node, with, without, in, want)
		}
	}
}

// TestTunnelEnds: TTL 1 is answered, and a node without a route is a named drop.
func TestTunnelEnds(t *testing.T) {
	l := tunnelLab(t, labConfig{}, node1)
	p := headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.SYN)
	l.toNode(p)
	p.TTL = 1
	l.send(0, p)
	if frame, answer := l.out(l.workers[0].nic); frame[answer.L4] != header.ICMPTimeExceeded {
		t.Errorf("answer %x", frame)
	}
	l.wantDrop(reason.TTLExceeded, 1)

	l = tunnelLab(t, labConfig{}, node1)
	r := new(bart.Table[nexthop.Route])
	r.Insert(netip.MustParsePrefix("0.0.0.0/0"), nexthop.Route{Hop: hopBackend, Kind: nexthop.OnLink}) // no source
	l.hops.Publish(&nexthop.View{Generation: 8, Routes: r})
	l.send(0, headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.SYN))
	l.wantDrop(reason.NoRoute, 1)
}

// BenchmarkTunnel: a client's data segments of a connection, translated and with direct return. It
// fails if a step allocates.
func BenchmarkTunnel(b *testing.B) {
	for _, tt := range []struct {
		name string
		make func() *lab
	}{
		{"nat", func() *lab { return newLab(b, labConfig{}) }},
		{"direct", func() *lab { return tunnelLab(b, labConfig{}, node1) }},
		{"direct over IPv6", func() *lab { return tunnelLab(b, labConfig{}, node61) }},
	} {
		b.Run(tt.name, func(b *testing.B) {
			l := tt.make()
			g := l.workers[0]
			l.send(0, headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.SYN))
			_, h := l.out(g.nic)
			src, dst := ends(&h.Tuple)
			if tt.name == "nat" {
				l.send(0, headertest.TCP(dst.String(), src.String(), headertest.SYN|headertest.ACK))
				l.out(g.nic)
			}
			data := headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.ACK)
			data.Payload = make([]byte, 100)
			l.send(0, data)
			l.out(g.nic)
			frame, buf := data.Bytes(), make([]byte, 0, 2048)
			step := func() {
				for range 64 {
					g.nic.Inject(frame)
				}
				g.Step(l.now)
				for range 64 {
					g.nic.Take(buf)
				}
			}
			if n := testing.AllocsPerRun(100, step); n != 0 {
				b.Fatalf("%v allocations in a step", n)
			}
			for b.Loop() {
				step()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(64*b.N), "ns/packet")
		})
	}
}

// TestTunnelAllocatesNothing: neither packets of known flows nor new flows allocate.
func TestTunnelAllocatesNothing(t *testing.T) {
	l := tunnelLab(t, labConfig{flows: 1 << 14}, node1, node61)
	g := l.workers[0]
	buf := make([]byte, 0, 2048)
	frames := make([][]byte, 2000)
	for i := range frames {
		flags := uint8(headertest.ACK)
		if i%2 == 0 {
			flags = headertest.SYN
		}
		frames[i] = headertest.TCP(join(client4, uint16(30000+i)), join(vip4, 80), flags).Bytes()
	}
	next := 0
	if n := testing.AllocsPerRun(500, func() {
		for range 3 {
			g.nic.Inject(frames[next%len(frames)])
			next++
		}
		g.Step(l.now)
		for range 3 {
			g.nic.Take(buf)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if d := l.drops(); len(d) > 0 {
		t.Errorf("drops: %v", d)
	}
}

// TestForwardingChanges: a Service that becomes direct keeps the connections that are translated,
// and one that is translated again ends the direct ones by RST. Datagrams go where new flows do. It
// is the same if the Service changes while no process runs, and if the endpoint has the node's
// address and the Service's port.
func TestForwardingChanges(t *testing.T) {
	const pods = 70 // numbers of backends
	translated := func(ip string, tcp, udp uint16) func(b *services.Builder) {
		return func(b *services.Builder) {
			rule := func(index uint32, id services.ServiceID, port uint16, proto uint8) services.Rule {
				be := backend(index, id, ip, port, proto)
				b.SetBackend(be)
				return services.Rule{Set: &services.EndpointSet{Backends: []services.BackendRef{be.Ref}}}
			}
			web := rule(pods, directService, tcp, header.ProtoTCP)
			rules(b, directService, services.LoadBalancer, vip4, 80, header.ProtoTCP, web, web)
			dns := rule(pods+1, directService+1, udp, header.ProtoUDP)
			rules(b, directService+1, services.LoadBalancer, vip4, 53, header.ProtoUDP, dns, dns)
			b.Settings().ResetUnknown = true
		}
	}
	pod, host := translated(second4, 8080, 8080), translated(node1, 80, 53)
	tunneled := direct([]string{node1}, []string{node1})
	segment := func(flags uint8) *headertest.Packet {
		return headertest.TCP(join(client4, 40000), join(vip4, 80), flags)
	}
	question := headertest.UDP(join(client4, 40000), join(vip4, 53), "question")
	toPod, toNode, toClient := join(second4, 8080), join(node1, labTunnel.Port), join(client4, 40000)
	for name, tt := range map[string]struct {
		before, after     func(*services.Builder)
		first, connection string // destinations of segments
		asked, datagram   string
	}{
		"to direct":               {pod, tunneled, toPod, toPod, toPod, toNode},
		"to translated":           {tunneled, pod, toNode, toClient, toNode, toPod},
		"from the host to direct": {host, tunneled, join(node1, 80), join(node1, 80), join(node1, 53), toNode},
		"from the host to another direct one": {host, directBy(60, []string{node1}, []string{node1}),
			join(node1, 80), join(node1, 80), join(node1, 53), toNode},
		"to the host": {tunneled, host, toNode, toClient, toNode, join(node1, 53)},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %v", name, restart), func(t *testing.T) {
				table := restarts(t)
				l := newLab(t, labConfig{table: table(), edit: tt.before, sources: true})
				goes := func(to string, p *headertest.Packet) (h header.Packet) {
					t.Helper()
					l.send(0, p)
					_, h = l.out(l.workers[0].nic)
					if _, dst := ends(&h.Tuple); dst.String() != to {
						t.Errorf("a packet goes to %v, want %s", dst, to)
					}
					return h
				}
				opened := goes(tt.first, segment(headertest.SYN))
				goes(tt.asked, question)
				if tt.first != toNode {
					from, to := ends(&opened.Tuple)
					goes(toClient, headertest.TCP(to.String(), from.String(), headertest.SYN|headertest.ACK))
				}
				goes(tt.first, segment(headertest.ACK))
				if restart {
					l = newLab(t, labConfig{table: table(), edit: tt.after, sources: true})
				} else {
					l.publish(func(b *services.Builder) {
						for id := range uint32(2) {
							b.DeleteBackend(services.MakeBackendRef(directService+id, 1))
							b.DeleteBackend(services.MakeBackendRef(pods+id, 1))
						}
						tt.after(b)
					})
				}
				goes(tt.connection, segment(headertest.ACK))
				goes(tt.datagram, question)
			})
		}
	}
}

// TestOldTablesAreFreed: a worker keeps only the current View and Snapshot in memory, even if it
// has forwarded packets by earlier ones.
func TestOldTablesAreFreed(t *testing.T) {
	nodes := []string{node1, node2, node3}
	l := tunnelLab(t, labConfig{}, nodes...)
	l.publish(func(b *services.Builder) {
		both(b, 70, ruleVIP, header.ProtoTCP, set(b, 70, 71, header.ProtoTCP, pod4))
	})
	var views []weak.Pointer[nexthop.View]
	var routes []weak.Pointer[bart.Table[nexthop.Route]]
	var snapshots []weak.Pointer[services.Snapshot]
	for i, n := range nodes {
		if i > 0 {
			l.publish(direct(nodes, []string{n}))
			l.routes()
		}
		v := l.hops.View()
		views, routes = append(views, weak.Make(v)), append(routes, weak.Make(v.Routes))
		snapshots = append(snapshots, weak.Make(l.handle.Load()))
		l.toNode(headertest.TCP(join(client4, uint16(40000+i)), join(vip4, 80), headertest.SYN))
		l.send(0, headertest.TCP(join(client4, uint16(41000+i)), join(ruleVIP, 80), headertest.SYN))
		l.out(l.workers[0].nic)
	}
	l.routes()
	l.publish(direct(nodes, nodes))
	l.step(time.Microsecond)
	runtime.GC()
	for i := range nodes {
		if views[i].Value() != nil || routes[i].Value() != nil || snapshots[i].Value() != nil {
			t.Errorf("table %d is still in memory: view %v, routes %v, snapshot %v",
				i, views[i].Value() != nil, routes[i].Value() != nil, snapshots[i].Value() != nil)
		}
	}
}

// TestTunnelUnanswered: a SYN that the client repeats stays with its node, which may have answered
// it, as long as the node serves.
func TestTunnelUnanswered(t *testing.T) {
	all := []string{node1, node2}
	l := tunnelLab(t, labConfig{}, node1)
	retry := func(b *services.Builder) { b.Settings().RetryOther = true }
	l.publish(direct(all, []string{node1}), retry)
	goesTo := func(want string) {
		t.Helper()
		p := headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.SYN)
		if _, node := l.toNode(p); node != want {
			t.Errorf("the SYN goes to %s, want %s", node, want)
		}
	}
	goesTo(node1)
	l.publish(direct(all, []string{node1, node2}))
	for _, pause := range []time.Duration{1, 2, 4} {
		l.step(pause * time.Second)
		goesTo(node1)
	}
	l.publish(direct(all, []string{node2}))
	l.step(time.Second)
	goesTo(node2)
}
