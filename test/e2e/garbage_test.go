//go:build root

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/garbage"
	"sluice.dev/sluice/test/bed/topo"
)

// TestGarbage: 20,000 packets (in the long run 200,000) of all classes of package garbage, most of
// them mutated, from the client and from the backends, with the tuples of flows of real sockets.
// The backends' kernels count nothing as damaged. Then as many whole packets, a tenth of which have
// a wrong transport checksum: they count nothing but checksums. Then as many fragments, of which
// nobody but the receiver knows what they are together: no header is wrong. The gateway's sums are
// exact, and it serves as before.
func TestGarbage(t *testing.T) {
	packets := 20_000
	if full() {
		packets = 200_000
	}
	// Garbage reaches sockets, whose answers reach the client: only backends are judges.
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, small: true, damaging: true})
	flows, stop := l.realFlows()
	source := garbage.New(2, netip.MustParseAddr(vip4), netip.MustParseAddr(vip6), l.Gateway.Addr4(),
		l.Gateway.Addr6(), l.Clients[0].Addr4(), l.Clients[0].Addr6())
	source.Sound = true
	source.Aim(flows)
	wires := l.wires()
	for _, p := range garbagePhases {
		before := l.backendCounters()
		sent, wrong := l.throw(source, wires, packets, &p)
		l.checkLaws() // waits until all is processed
		for i, now := range l.backendCounters() {
			d := now.Since(before[i])
			t.Logf("%s: %s received %d IPv4 and %d IPv6 packets; checksums: TCP %d, UDP %d and %d", p.name,
				l.Backends[i].Name, d["IpInReceives"], d["Ip6InReceives"], d["TcpInCsumErrors"], d["UdpInCsumErrors"],
				d["Udp6InCsumErrors"])
			for _, bad := range d.Damaged() {
				if name, _, _ := strings.Cut(bad, "="); !p.allowed(d, name) {
					t.Errorf("%s: %s counted %s", p.name, l.Backends[i].Name, bad)
				}
			}
		}
		t.Logf("%s: %d packets, %d of them whole with a wrong checksum", p.name, sent, wrong)
		if (wrong != 0) != p.wrong {
			t.Errorf("%s: %d packets with a wrong checksum", p.name, wrong)
		}
	}
	l.wantServed("after garbage")
	stop()
	l.wantSteered()
}

// garbagePhase is what is sent apart, and what backends may count of it.
type garbagePhase struct {
	name      string
	wrong     bool // some have a wrong checksum
	fragments bool
	allowed   func(d topo.Counters, name string) bool
}

var garbagePhases = []garbagePhase{
	{"sound", false, false, socketIsGone},
	{"wrong checksums", true, false, onlyChecksums},
	{"fragments", false, true, func(d topo.Counters, name string) bool {
		transport := strings.HasPrefix(name, "Tcp") || strings.HasPrefix(name, "Udp") ||
			strings.HasSuffix(name, "InCsumErrors") && name != "IpExtInCsumErrors"
		return transport || socketIsGone(d, name)
	}},
}

// socketIsGone: an error about a socket that is gone is no damage (tcp_v4_err,
// net/ipv4/tcp_ipv4.c).
func socketIsGone(_ topo.Counters, name string) bool {
	return name == "IcmpInErrors" || name == "Icmp6InErrors"
}

// wantSteered waits until workers have received all packets that were steered to them.
func (l *lab) wantSteered() {
	l.t.Helper()
	err := topo.Until(l.ctx, 10*time.Second, 50*time.Millisecond, func(context.Context) error {
		s := l.checkLaws()
		rx := sum(&s, received)
		for _, q := range s.Queues {
			rx += q.RxDropped + q.RxRingFull
		}
		if steered := s.Steering["steered"]; rx != steered {
			return fmt.Errorf("%d packets were steered, and %d received or lost by rings: %v", steered, rx, s.Steering)
		}
		l.t.Logf("steered %d, and as many received; sent %d, made %d, to the kernel %d, dropped %v", rx,
			sum(&s, func(w *status.WorkerView) uint64 { return w.Tx }),
			sum(&s, func(w *status.WorkerView) uint64 { return w.Generated }),
			sum(&s, func(w *status.WorkerView) uint64 { return w.Returned }), drops(&s))
		return nil
	})
	if err != nil {
		l.t.Error(err)
	}
}

// received counts what came from interfaces, and not by the host link.
func received(w *status.WorkerView) uint64 { return w.Rx - w.KernelRx }

// onlyChecksums reports whether a counter of damage counted nothing but wrong transport checksums.
func onlyChecksums(d topo.Counters, name string) bool {
	if strings.HasSuffix(name, "InCsumErrors") && name != "IpExtInCsumErrors" || socketIsGone(d, name) {
		return true
	}
	sums := map[string]uint64{"TcpInErrs": d["TcpInCsumErrors"] + d["TcpExtTCPSYNChallenge"],
		"UdpInErrors":  d["UdpInCsumErrors"] + d["UdpRcvbufErrors"],
		"Udp6InErrors": d["Udp6InCsumErrors"] + d["Udp6RcvbufErrors"]}
	n, ok := sums[name]
	return ok && d[name] == n
}

// realFlows opens flows of real sockets, and returns what the gateway says of them. stop ends them.
func (l *lab) realFlows() (flows []*garbage.Flow, stop func()) {
	l.t.Helper()
	load := topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)}, Flows: 16,
		Interval: 100 * time.Millisecond}
	tcp, err := l.Clients[0].OpenTCP(l.ctx, load)
	if err != nil {
		l.t.Fatal(err)
	}
	load.Targets = []netip.AddrPort{at(vip4, dnsPort), at(vip6, dnsPort)}
	udp, err := l.Clients[0].OpenUDP(l.ctx, load)
	if err != nil {
		l.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		tcp.Stop()
		udp.Stop()
	})
	l.t.Cleanup(stop)
	list := func(f *status.FlowView) error {
		flow := &garbage.Flow{Proto: header.ProtoTCP, Client: f.Client, VIP: f.VIP, SNAT: f.SNAT, Server: f.Backend}
		if strings.EqualFold(f.Protocol, "udp") {
			flow.Proto = header.ProtoUDP
		}
		flows = append(flows, flow)
		return nil
	}
	err = topo.Until(l.ctx, 10*time.Second, 50*time.Millisecond, func(ctx context.Context) error {
		flows = nil
		if err := l.gate.Client.Flows(ctx, status.FlowFilter{}, list); err != nil {
			return topo.Final(err)
		}
		if len(flows) < 32 {
			return fmt.Errorf("the gateway has %d flows", len(flows))
		}
		return nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return flows, stop
}

// wires are where hosts send from, by their addresses.
func (l *lab) wires() map[netip.Addr]*wire {
	wires := map[netip.Addr]*wire{}
	add := func(h *topo.Host, gateway [6]byte) {
		w := openWire(l.t, h, gateway)
		wires[h.Addr4()], wires[h.Addr6()] = w, w
	}
	add(l.Clients[0], l.Gateway.Interfaces[0].MAC)
	for _, h := range l.Backends {
		add(h, l.Gateway.Interfaces[1].MAC)
	}
	return wires
}

func (l *lab) backendCounters() (list []topo.Counters) {
	for _, h := range l.Backends {
		c, err := h.Counters()
		if err != nil {
			l.t.Fatal(err)
		}
		list = append(list, c)
	}
	return list
}

// throw sends packets of a phase, and returns their number and that of those with a wrong checksum.
// What no interface of this MTU can send is left out.
func (l *lab) throw(s *garbage.Source, wires map[netip.Addr]*wire, packets int, p *garbagePhase) (sent, wrong int) {
	for sent < packets {
		f := s.Next()
		if len(f.Bytes) < header.EthernetBytes || len(f.Bytes) > header.EthernetBytes+1500 ||
			garbage.Fragment(f.Bytes) != p.fragments {
			continue
		}
		if p.wrong && sent%10 == 0 {
			breakSum(f.Bytes)
		}
		bad := garbage.WrongSum(f.Bytes)
		if bad && !p.wrong {
			continue
		}
		from := f.Flow.Client.Addr()
		if f.FromServer {
			from = f.Flow.Server.Addr()
		}
		if err := wires[from].send(f.Bytes); err != nil {
			l.t.Fatalf("%d bytes of class %v: %v", len(f.Bytes), f.Class, err)
		}
		sent++
		if bad {
			wrong++
		}
	}
	return sent, wrong
}

// breakSum makes the checksum of a segment wrong.
func breakSum(b []byte) {
	var p header.Packet
	if header.Parse(b, &p) == 0 && p.Fragment == header.NotFragment && p.Tuple.Proto == header.ProtoTCP {
		b[p.L4+16] ^= 1
	}
}
