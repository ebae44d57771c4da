package xdpprog

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/nat/header"
)

const (
	vip4, vip6       = "192.0.2.10", "2001:db8::10"
	bareVIP4         = "192.0.2.11" // a VIP of which no port is served
	nodeVIP4         = "192.0.2.12" // an external IP that is the node's own
	node4, node6     = "198.51.100.1", "2001:db8:1::1"
	snat4, snat6     = "203.0.113.5", "2001:db8:2::5"
	client4, client6 = "100.64.7.7", "2001:db8:7::7"
	kept4, kept6     = "10.0.0.5", "fd00::5"
	plain4, plain6   = "10.0.0.9", "fd00::9" // a backend that does not keep, or any host
	snatFirst        = 20000
	snatCount        = 1000
	tcp, udp, sctp   = header.ProtoTCP, header.ProtoUDP, header.ProtoSCTP
	icmp4, icmp6     = header.ProtoICMP, header.ProtoICMPv6
)

func addr(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }

func key(a string, proto uint8, port uint16) FrontendKey {
	return FrontendKey{Addr: addr(a), Port: port, Proto: proto}
}

// fixture is the rules that the packets of TestSteer meet.
func fixture() Rules {
	return Rules{
		Frontends: []FrontendKey{
			key(vip4, tcp, 80), key(vip4, udp, 53), key(vip4, sctp, 9),
			key(vip6, tcp, 80), key(vip6, udp, 53), key(vip6, sctp, 9),
		},
		NodePorts: []NodePort{
			{false, tcp, 30080}, {true, tcp, 30080}, {false, udp, 30053}, {true, tcp, 30090}, {false, sctp, 30009}, {false, tcp, 65535},
		},
		Addrs: map[header.Addr]AddrFlags{
			addr(vip4): AddrVIP, addr(vip6): AddrVIP, addr(bareVIP4): AddrVIP, addr(nodeVIP4): AddrVIP | AddrNode,
			addr(node4): AddrNode, addr(node6): AddrNode, addr(snat4): AddrSNAT, addr(snat6): AddrSNAT,
		},
		Sources: []FrontendKey{key(kept4, tcp, 8080), key(kept6, tcp, 8080), key(node4, tcp, 8080)},
	}
}

// The verdict of a case: which program wants the packet.
const (
	kernel     = 0
	steers     = 1 // steer does
	redirects  = 2 // egress does
	both       = steers | redirects
	whenAsked  = 4 // steer does if Settings.Unserved
	hostLinkIx = 4242
)

type verdictCase struct {
	name string
	p    pkt
	want int
}

func verdictCases() []verdictCase {
	// Errors about packets: from a router or the far end, back to whom the packet claims as its source.
	about := func(typ uint8, quote pkt) pkt {
		p := pkt{src: plain4, dst: quote.src, proto: icmp4, icmpType: typ, quote: &quote}
		if quote.v6() {
			p.src, p.proto = plain6, icmp6
		}
		return p
	}
	frag6 := func(v uint16) []ex { return []ex{{kind: fragment, units: 1, fragment: v}} }
	cases := []verdictCase{
		{"frontend TCP v4", pkt{src: client4, dst: vip4, proto: tcp, sport: 999, dport: 80}, steers},
		{"frontend UDP v4", pkt{src: client4, dst: vip4, proto: udp, sport: 999, dport: 53}, steers},
		{"frontend SCTP v4", pkt{src: client4, dst: vip4, proto: sctp, sport: 999, dport: 9}, steers},
		{"frontend TCP v6", pkt{src: client6, dst: vip6, proto: tcp, sport: 999, dport: 80}, steers},
		{"frontend UDP v6", pkt{src: client6, dst: vip6, proto: udp, sport: 999, dport: 53}, steers},
		{"frontend SCTP v6", pkt{src: client6, dst: vip6, proto: sctp, sport: 999, dport: 9}, steers},
		{"frontend's port of another protocol", pkt{src: client4, dst: vip4, proto: udp, sport: 999, dport: 80}, whenAsked},
		{"frontend's port, other address", pkt{src: client4, dst: plain4, proto: tcp, sport: 999, dport: 80}, kernel},
		{"frontend's port as source", pkt{src: vip4, dst: client4, proto: tcp, sport: 80, dport: 999}, kernel},
		{"frontend, port bytes swapped", pkt{src: client4, dst: vip4, proto: tcp, sport: 999, dport: 80 << 8}, whenAsked},
		{"frontend, other protocol", pkt{src: client4, dst: vip4, proto: 47, sport: 999, dport: 80}, kernel},
		{"frontend, IPv4 options", pkt{src: client4, dst: vip4, proto: tcp, sport: 999, dport: 80, optionBytes: 40}, steers},

		{"VIP without frontends", pkt{src: client4, dst: bareVIP4, proto: tcp, dport: 80}, whenAsked},
		{"VIP that is the node's, unserved", pkt{src: client4, dst: nodeVIP4, proto: tcp, dport: 22}, kernel},
		{"VIP that is the node's, node port", pkt{src: client4, dst: nodeVIP4, proto: tcp, dport: 30080}, steers},

		{"node port TCP v4", pkt{src: client4, dst: node4, proto: tcp, dport: 30080}, steers},
		{"node port TCP v6", pkt{src: client6, dst: node6, proto: tcp, dport: 30080}, steers},
		{"node port UDP v4", pkt{src: client4, dst: node4, proto: udp, dport: 30053}, steers},
		{"node port SCTP v4", pkt{src: client4, dst: node4, proto: sctp, dport: 30009}, steers},
		{"node port, highest", pkt{src: client4, dst: node4, proto: tcp, dport: 65535}, steers},
		{"node port of v4 only, v6", pkt{src: client6, dst: node6, proto: udp, dport: 30053}, kernel},
		{"node port of v6 only, v4", pkt{src: client4, dst: node4, proto: tcp, dport: 30090}, kernel},
		{"node port of another protocol", pkt{src: client4, dst: node4, proto: udp, dport: 30080}, kernel},
		{"node port's neighbour", pkt{src: client4, dst: node4, proto: tcp, dport: 30081}, kernel},
		{"node port at a VIP", pkt{src: client4, dst: vip4, proto: tcp, dport: 30080}, whenAsked},
		{"node's SSH", pkt{src: client4, dst: node4, proto: tcp, dport: 22}, kernel},
		{"node port 0", pkt{src: client4, dst: node4, proto: tcp}, kernel},

		{"reply, first port of the range", pkt{src: plain4, dst: snat4, proto: tcp, sport: 80, dport: snatFirst}, steers},
		{"reply, last port of the range", pkt{src: plain6, dst: snat6, proto: udp, sport: 80, dport: snatFirst + snatCount - 1}, steers},
		{"reply SCTP", pkt{src: plain4, dst: snat4, proto: sctp, sport: 80, dport: snatFirst + 1}, steers},
		{"port before the range", pkt{src: plain4, dst: snat4, proto: tcp, sport: 80, dport: snatFirst - 1}, kernel},
		{"port after the range", pkt{src: plain4, dst: snat4, proto: tcp, sport: 80, dport: snatFirst + snatCount}, kernel},
		{"range at an address that is not SNAT", pkt{src: plain4, dst: node4, proto: tcp, sport: 80, dport: snatFirst}, kernel},

		{"kept source v4", pkt{src: kept4, dst: client4, proto: tcp, sport: 8080, dport: 999}, both},
		{"kept source v6", pkt{src: kept6, dst: client6, proto: tcp, sport: 8080, dport: 999}, both},
		{"kept source, other port", pkt{src: kept4, dst: client4, proto: tcp, sport: 8081, dport: 999}, kernel},
		{"kept source, other protocol", pkt{src: kept4, dst: client4, proto: udp, sport: 8080, dport: 999}, kernel},
		{"to a kept source", pkt{src: client4, dst: kept4, proto: tcp, sport: 999, dport: 8080}, kernel},
		{"kept source is the node's own: from outside a forgery", pkt{src: node4, dst: client4, proto: tcp, sport: 8080, dport: 999}, redirects},
		{"kept source, other address", pkt{src: plain4, dst: client4, proto: tcp, sport: 8080, dport: 999}, kernel},

		{"echo request to a VIP v4", pkt{src: client4, dst: vip4, proto: icmp4, icmpType: 8}, steers},
		{"echo request to a VIP v6", pkt{src: client6, dst: vip6, proto: icmp6, icmpType: 128}, steers},
		{"echo request to a VIP without frontends", pkt{src: client4, dst: bareVIP4, proto: icmp4, icmpType: 8}, steers},
		{"echo reply to a VIP", pkt{src: client4, dst: vip4, proto: icmp4, icmpType: 0}, kernel},
		{"echo request to the node", pkt{src: client4, dst: node4, proto: icmp4, icmpType: 8}, kernel},
		{"echo request to an SNAT address", pkt{src: client6, dst: snat6, proto: icmp6, icmpType: 128}, kernel},
		{"echo request from a kept source", pkt{src: kept4, dst: client4, proto: icmp4, icmpType: 8}, kernel},
		{"ICMPv6 type in ICMP", pkt{src: client4, dst: vip4, proto: icmp4, icmpType: 128}, kernel},
		{"ICMP in IPv6", pkt{src: client6, dst: vip6, proto: icmp4, icmpType: 8}, kernel},
		{"neighbour solicitation to a VIP", pkt{src: client6, dst: vip6, proto: icmp6, icmpType: 135}, kernel},

		{"error about a frontend's packet", about(3, pkt{src: vip4, dst: client4, proto: tcp, sport: 80, dport: 999}), steers},
		{"error about a frontend's packet v6", about(2, pkt{src: vip6, dst: client6, proto: udp, sport: 53, dport: 999}), steers},
		{"error about a node port's packet", about(11, pkt{src: node4, dst: client4, proto: tcp, sport: 30080, dport: 999}), steers},
		{"error about the node's own packet", about(3, pkt{src: node4, dst: client4, proto: tcp, sport: 22, dport: 999}), kernel},
		{"error about an SNAT packet", about(12, pkt{src: snat4, dst: plain4, proto: udp, sport: snatFirst, dport: 53}), steers},
		{"error about an SNAT packet v6", about(1, pkt{src: snat6, dst: plain6, proto: tcp, sport: snatFirst, dport: 80}), steers},
		{"error about a port outside the range", about(3, pkt{src: snat4, dst: plain4, proto: udp, sport: 53, dport: 53}), kernel},
		{"error about a packet to a kept backend", about(3, pkt{src: client4, dst: kept4, proto: tcp, sport: 999, dport: 8080}), both},
		{"error about a packet to a kept backend v6", about(3, pkt{src: client6, dst: kept6, proto: tcp, sport: 999, dport: 8080}), both},
		{"error about a packet to another port of it", about(3, pkt{src: client4, dst: kept4, proto: tcp, sport: 999, dport: 22}), kernel},
		{"error about a packet from a kept backend", about(3, pkt{src: kept4, dst: client4, proto: tcp, sport: 8080, dport: 999}), kernel},
		{"error about strangers", about(3, pkt{src: client4, dst: plain4, proto: tcp, sport: 999, dport: 80}), kernel},
		{"error about an echo reply of a VIP", about(3, pkt{src: vip4, dst: client4, proto: icmp4}), kernel},
		{"error about IPv4 options", about(3, pkt{src: vip4, dst: client4, proto: tcp, sport: 80, dport: 999, optionBytes: 12}), steers},
		{"error about extension headers", about(2, pkt{src: vip6, dst: client6, proto: tcp, sport: 80, ext: []ex{{kind: dstopts, units: 2}}}), steers},
		{"error about a fragment of ours", about(11, pkt{src: snat4, dst: plain4, proto: udp, fragOffset: 1480}), steers},
		{"error about a fragment to a kept backend", about(11, pkt{src: client4, dst: kept4, proto: udp, fragOffset: 1480}), both},
		{"error about a fragment of strangers", about(11, pkt{src: client4, dst: plain4, proto: udp, fragOffset: 1480}), kernel},
		{"redirect", about(5, pkt{src: vip4, dst: client4, proto: tcp, sport: 80, dport: 999}), kernel},
		{"source quench (RFC 6633)", about(4, pkt{src: vip4, dst: client4, proto: tcp, sport: 80, dport: 999}), kernel},
		{"ICMPv6 informational", about(129, pkt{src: vip6, dst: client6, proto: tcp, sport: 80, dport: 999}), kernel},
		{"error to somebody else than it quotes", pkt{src: plain4, dst: node4, proto: icmp4, icmpType: 3,
			quote: &pkt{src: vip4, dst: client4, proto: tcp, sport: 80, dport: 999}}, kernel},

		{"first fragment to a VIP", pkt{src: client4, dst: vip4, proto: udp, dport: 53, fragMore: true}, steers},
		{"later fragment to a VIP", pkt{src: client4, dst: vip4, proto: udp, fragOffset: 1480}, steers},
		{"later fragment to the node", pkt{src: client4, dst: node4, proto: udp, fragOffset: 1480, fragMore: true}, steers},
		{"later fragment to an SNAT address", pkt{src: plain4, dst: snat4, proto: icmp4, fragOffset: 8}, steers},
		{"fragment, IPv4 options", pkt{src: client4, dst: vip4, proto: udp, fragOffset: 8, optionBytes: 8}, steers},
		{"fragment to a stranger", pkt{src: client4, dst: plain4, proto: udp, fragOffset: 1480}, kernel},
		{"later fragment from a kept source", pkt{src: kept4, dst: client4, proto: tcp, fragOffset: 1480}, both},
		{"first fragment from a kept source", pkt{src: kept4, dst: client4, proto: udp, sport: 1, fragMore: true}, both},
		{"fragment to a kept source", pkt{src: client4, dst: kept4, proto: tcp, fragOffset: 1480}, kernel},
		{"fragment from a kept source that is the node's", pkt{src: node4, dst: client4, proto: tcp, fragOffset: 8}, redirects},
		{"first fragment to a VIP v6", pkt{src: client6, dst: vip6, proto: udp, dport: 53, ext: frag6(more)}, steers},
		{"later fragment to a VIP v6", pkt{src: client6, dst: vip6, proto: udp, ext: frag6(1480)}, steers},
		{"later fragment from a kept source v6", pkt{src: kept6, dst: client6, proto: tcp, ext: frag6(1480 | more)}, both},
		{"atomic fragment v6, frontend", pkt{src: client6, dst: vip6, proto: udp, dport: 53, ext: frag6(0)}, steers},
		{"atomic fragment v6, reserved bits", pkt{src: client6, dst: vip6, proto: udp, dport: 53, ext: frag6(6)}, steers},
		{"atomic fragment v6, unserved", pkt{src: client6, dst: vip6, proto: udp, dport: 54, ext: frag6(0)}, whenAsked},
		{"fragment behind options v6", pkt{src: client6, dst: vip6, proto: udp, ext: []ex{{kind: hopopts, units: 1}, {kind: fragment, units: 1, fragment: 8}}}, steers},
		{"options behind a fragment header v6", pkt{src: client6, dst: vip6, proto: udp, ext: []ex{{kind: fragment, units: 1, fragment: 8}, {kind: dstopts, units: 3}}}, steers},

		{"hop-by-hop options", pkt{src: client6, dst: vip6, proto: tcp, dport: 80, ext: []ex{{kind: hopopts, units: 1}}}, steers},
		{"all extension headers", pkt{src: client6, dst: vip6, proto: tcp, dport: 80, ext: []ex{{kind: hopopts, units: 2},
			{kind: dstopts, units: 1}, {kind: routing, units: 3}, {kind: fragment, units: 1}, {kind: auth, units: 3}, {kind: dstopts, units: 4}}}, steers},
		{"extension headers, echo request", pkt{src: client6, dst: vip6, proto: icmp6, icmpType: 128, ext: []ex{{kind: dstopts, units: 1}}}, steers},
		{"extension headers, unserved", pkt{src: client6, dst: node6, proto: tcp, dport: 22, ext: []ex{{kind: dstopts, units: 1}}}, kernel},
		{"unknown extension header", pkt{src: client6, dst: vip6, proto: tcp, dport: 80, ext: []ex{{kind: 253, units: 1}}}, kernel},
		{"no next header", pkt{src: client6, dst: vip6, proto: 59}, kernel},

		{"broadcast MAC", pkt{src: client4, dst: vip4, proto: tcp, dport: 80, toMAC: 0xff}, kernel},
		{"multicast MAC", pkt{src: client4, dst: vip4, proto: tcp, dport: 80, toMAC: 0x01}, kernel},
	}
	for n := range 10 { // eight headers are walked and a ninth is not
		c := verdictCase{fmt.Sprintf("%d extension headers", n), pkt{src: client6, dst: vip6, proto: tcp, dport: 80}, steers}
		for range n {
			c.p.ext = append(c.p.ext, ex{kind: dstopts, units: 1})
		}
		if n > 8 {
			c.want = kernel
		}
		cases = append(cases, c)
	}
	return cases
}

// TestSteer shows every rule by a packet that it takes and one that it leaves,
// under zero to two VLAN tags, and cut at every byte: what has lost the bytes a
// rule needs is the kernel's.
func TestSteer(t *testing.T) {
	for _, unserved := range []bool{false, true} {
		b := newBench(t, Settings{SNATFirst: snatFirst, SNATCount: snatCount, HostLinkIndex: hostLinkIx, Unserved: unserved}, fixture())
		b.beat(time.Second)
		for _, c := range verdictCases() {
			want := c.want
			if want&whenAsked != 0 && unserved {
				want |= steers
			}
			t.Run(fmt.Sprintf("%s/unserved=%v", c.name, unserved), func(t *testing.T) {
				for _, tags := range [][]uint16{nil, {0x8100}, {0x88a8}, {0x88a8, 0x8100}, {0x8100, 0x8100}} {
					b.judge(t, &c.p, tags, want)
				}
				if got := b.verdict(t, c.p.frame(0x88a8, 0x8100, 0x8100)); got != kernel {
					t.Errorf("three VLAN tags: verdict %d, want the kernel's", got)
				}
			})
		}
	}
}

// judge checks the verdict of the whole frame and of every frame cut short.
func (b *bench) judge(t *testing.T, p *pkt, tags []uint16, want int) {
	t.Helper()
	whole := p.frame(tags...)
	for n := 14; n <= len(whole); n++ {
		w := want & both
		if n < p.needs(len(tags)) {
			w = kernel
		}
		if got := b.verdict(t, whole[:n]); got != w {
			t.Errorf("%d VLAN tags, %d of %d bytes: verdict %d, want %d", len(tags), n, len(whole), got, w)
		}
	}
}

// TestSteerMalformed: what is no IP packet is no packet of ours.
func TestSteerMalformed(t *testing.T) {
	b := newBench(t, Settings{}, fixture())
	b.beat(time.Second)
	v4 := pkt{src: client4, dst: vip4, proto: tcp, dport: 80}
	v6 := pkt{src: client6, dst: vip6, proto: tcp, dport: 80}
	for _, c := range []struct {
		name string
		p    pkt
		at   int
		to   byte
	}{
		{"IPv4 of version 5", v4, 14, 0x55},
		{"IPv4 header of 16 bytes", v4, 14, 0x44},
		{"IPv4 header beyond the frame", v4, 14, 0x4f},
		{"IPv6 of version 4", v6, 14, 0x40},
		{"EtherType ARP", v4, 13, 0x06},
		{"EtherType says IPv6", v4, 12, 0x86},
	} {
		t.Run(c.name, func(t *testing.T) {
			frame := c.p.frame()
			if b.verdict(t, frame) != steers {
				t.Fatal("not steered even before it was broken")
			}
			frame[c.at] = c.to
			if got := b.verdict(t, frame); got != kernel {
				t.Errorf("verdict %d, want the kernel's", got)
			}
		})
	}
}

// TestHeartbeat: without a socket, a matching packet is dropped while the
// heartbeat is young, and the kernel's when it is old or was never there.
func TestHeartbeat(t *testing.T) {
	b := newBench(t, Settings{HostLinkIndex: hostLinkIx}, fixture())
	steered := pkt{src: client4, dst: vip4, proto: tcp, dport: 80}
	caught := pkt{src: kept4, dst: client4, proto: tcp, sport: 8080}
	for _, c := range []struct {
		name string
		age  time.Duration
		want int
	}{
		{"never", -1, kernel},
		{"young", 0, both},
		{"almost old", DefaultPassAfter - 5*time.Second, both},
		{"old", DefaultPassAfter + time.Millisecond, kernel},
		{"young again", time.Second, both},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.beat(c.age)
			if got := b.verdict(t, steered.frame()); got != c.want&steers {
				t.Errorf("to a frontend: verdict %d, want %d", got, c.want&steers)
			}
			if got := b.verdict(t, caught.frame()); got != c.want {
				t.Errorf("from a kept source: verdict %d, want %d", got, c.want)
			}
		})
	}
	t.Run("pass-after changed in place", func(t *testing.T) {
		b.beat(5 * time.Second)
		if err := b.SetSettings(Settings{PassAfter: time.Second}); err != nil {
			t.Fatal(err)
		}
		if got := b.verdict(t, steered.frame()); got != kernel {
			t.Errorf("verdict %d, want the kernel's", got)
		}
	})
}

// TestEgressStaysOut: what must never go to the host link.
func TestEgressStaysOut(t *testing.T) {
	b := newBench(t, Settings{HostLinkIndex: hostLinkIx}, fixture())
	b.beat(time.Second)
	p := pkt{src: kept4, dst: client4, proto: tcp, sport: 8080}
	if got := b.runEgress(t, p.frame(), skb{}); got != tcxRedirect {
		t.Fatalf("verdict %d, want a redirect", got)
	}
	if got := b.runEgress(t, p.frame(), skb{ingress: 1}); got != tcxRedirect {
		t.Errorf("forwarded from another device: verdict %d, want a redirect", got)
	}
	if err := b.SetSettings(Settings{HostLinkIndex: 1}); err != nil { // the test run knows loopback only
		t.Fatal(err)
	}
	if got := b.runEgress(t, p.frame(), skb{ingress: 1}); got != tcxNext {
		t.Errorf("returned by user space: verdict %d, want none", got)
	}
	if got := b.runEgress(t, p.frame(), skb{device: 1}); got != tcxNext {
		t.Errorf("on the host link itself: verdict %d, want none", got)
	}
	if err := b.SetSettings(Settings{}); err != nil {
		t.Fatal(err)
	}
	if got := b.runEgress(t, p.frame(), skb{}); got != tcxNext {
		t.Errorf("no host link: verdict %d, want none", got)
	}
}

func TestHostLinkProgram(t *testing.T) {
	b := newBench(t, Settings{}, Rules{})
	if got := run(t, b.hostLink, (&pkt{src: client4, dst: plain4, proto: tcp}).frame(), nil); got != xdpDrop {
		t.Errorf("without a socket: action %d, want drop: nothing here may reach the kernel twice", got)
	}
}

func TestCounters(t *testing.T) {
	b := newBench(t, Settings{HostLinkIndex: hostLinkIx}, fixture())
	ours, theirs := pkt{src: client4, dst: vip4, proto: tcp, dport: 80}, pkt{src: client4, dst: plain4, proto: tcp}
	caught := pkt{src: kept4, dst: client4, proto: tcp, sport: 8080}
	b.beat(-1)
	for range 3 {
		run(t, b.steer, ours.frame(), nil)
	}
	b.beat(time.Second)
	for range 5 {
		run(t, b.steer, ours.frame(), nil)
		b.runEgress(t, caught.frame(), skb{})
		b.runEgress(t, theirs.frame(), skb{})
	}
	for range 7 {
		run(t, b.steer, theirs.frame(), nil)
	}
	got, err := b.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if want := (Counters{Passed: 7, MissedDropped: 5, MissedPassed: 3, EgressRedirected: 5}); got != want {
		t.Errorf("counters %+v, want %+v", got, want)
	}
}

// bench is a Steering without interfaces and an instance of each program.
type bench struct {
	*Steering
	t                       *testing.T
	steer, hostLink, egress *ebpf.Program
}

func newBench(t *testing.T, settings Settings, rules Rules) *bench {
	t.Helper()
	s, err := Load(Config{MaxFrontends: 64, MaxSources: 64, MaxAddrs: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(true); err != nil {
			t.Error(err)
		}
	})
	if err := s.SetSettings(settings); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reconcile(rules); err != nil {
		t.Fatal(err)
	}
	b := &bench{Steering: s, t: t}
	for name, p := range map[string]**ebpf.Program{steerProgSteer: &b.steer, steerProgHostLink: &b.hostLink, steerProgEgress: &b.egress} {
		c, err := s.instance(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		*p = c.Programs[name]
	}
	return b
}

// beat sets a heartbeat of an age; negative: never.
func (b *bench) beat(age time.Duration) {
	b.t.Helper()
	var nanos uint64
	if age >= 0 {
		nanos = uint64(bootNanos(b.t) - int64(age))
	}
	if err := b.Heartbeat(nanos); err != nil {
		b.t.Fatal(err)
	}
}

func bootNanos(t *testing.T) int64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	return now.Nano()
}

const (
	xdpDrop, xdpPass     = 1, 2
	tcxRedirect, tcxNext = 7, 0xffffffff
)

// verdict runs steer and egress. The test run has no socket, so under a young
// heartbeat a packet that steer wants is dropped.
func (b *bench) verdict(t *testing.T, frame []byte) (v int) {
	t.Helper()
	switch got := run(t, b.steer, frame, nil); got {
	case xdpDrop:
		v |= steers
	case xdpPass:
	default:
		t.Fatalf("steer returned action %d", got)
	}
	// The kernel's test run of egress takes no less than an IP header.
	if frame[12] == 0x08 && len(frame) < 14+20 || frame[12] == 0x86 && len(frame) < 14+40 {
		return v
	}
	switch got := b.runEgress(t, frame, skb{}); got {
	case tcxRedirect:
		v |= redirects
	case tcxNext:
	default:
		t.Fatalf("egress returned action %d", got)
	}
	return v
}

// skb is what a test run may say about a packet: struct __sk_buff.
type skb struct{ ingress, device uint32 }

func (b *bench) runEgress(t *testing.T, frame []byte, s skb) uint32 {
	t.Helper()
	var ctx [48]uint32 // 192 bytes: up to tstamp_type of struct __sk_buff
	ctx[9], ctx[10] = s.ingress, s.device
	return run(t, b.egress, frame, ctx)
}

func run(t *testing.T, p *ebpf.Program, frame []byte, ctx any) uint32 {
	t.Helper()
	o := &ebpf.RunOptions{Data: frame, Context: ctx, Repeat: 1}
	ret, err := p.Run(o)
	if err != nil {
		t.Fatalf("%s with %d bytes: %v", strings.TrimSpace(p.String()), len(frame), err)
	}
	return ret
}
