//go:build root

package xdpprog

import (
	"fmt"
	"net/netip"

	"sluice.dev/sluice/nat/header"
)

const (
	vip4, vip6       = "192.0.2.10", "2001:db8::10"
	bareVIP4         = "192.0.2.11" // a VIP without frontends
	nodeVIP4         = "192.0.2.12" // an external IP that is the node's own
	node4, node6     = "198.51.100.1", "2001:db8:1::1"
	snat4, snat6     = "203.0.113.5", "2001:db8:2::5"
	own4, own6       = "203.0.113.6", "2001:db8:2::6" // SNAT addresses that the node does not have
	client4, client6 = "100.64.7.7", "2001:db8:7::7"
	kept4, kept6     = "10.0.0.5", "fd00::5"
	local4, local6   = "198.51.100.2", "2001:db8:1::2" // of the node, without node ports
	plain4, plain6   = "10.0.0.9", "fd00::9"           // a backend that is not kept, or any host
	snatFirst        = 20000
	snatCount        = 1000
	keptReply        = 17000 // a port outside of the range that live flows use
	tcp, udp, sctp   = header.ProtoTCP, header.ProtoUDP, header.ProtoSCTP
	icmp4, icmp6     = header.ProtoICMP, header.ProtoICMPv6

	esp, gre, ipip, ospf = 50, 47, 4, 89 // for the kernel, fragmented or not
)

func addr(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }

func key(a string, proto uint8, port uint16) FrontendKey {
	return FrontendKey{Addr: addr(a), Port: port, Proto: proto}
}

// fixture returns the rules for the packets of TestSteer.
func fixture() Rules {
	return Rules{
		Frontends: []FrontendKey{
			key(vip4, tcp, 80), key(vip4, udp, 53), key(vip4, sctp, 9),
			key(vip6, tcp, 80), key(vip6, udp, 53), key(vip6, sctp, 9),
		},
		NodePorts: []NodePort{
			{false, tcp, 30080}, {true, tcp, 30080}, {false, udp, 30053}, {true, tcp, 30090}, {false, sctp, 30009},
			{true, sctp, 30019}, {false, tcp, 65535},
		},
		Addrs: map[header.Addr]AddrFlags{
			addr(vip4): AddrVIP, addr(vip6): AddrVIP, addr(bareVIP4): AddrVIP, addr(nodeVIP4): AddrVIP | AddrNode,
			addr(local4): AddrLocal, addr(local6): AddrLocal,
			addr(node4): AddrNode, addr(node6): AddrNode, addr(snat4): AddrSNAT | AddrLocal,
			addr(snat6): AddrSNAT | AddrLocal, addr(own4): AddrSNAT, addr(own6): AddrSNAT,
		},
		Sources: []FrontendKey{
			key(kept4, tcp, 8080), key(kept6, tcp, 8080), key(node4, tcp, 8080), key(bareVIP4, tcp, 8080),
			key(kept4, sctp, 9), key(kept6, sctp, 9),
		},
		Replies: []NodePort{
			{false, tcp, keptReply}, {true, udp, keptReply}, {false, sctp, keptReply}, {false, tcp, 30081},
		},
	}
}

// The verdict of a case: the programs that take the packet.
const (
	kernel      = 0
	steers      = 1 // steer takes it
	redirects   = 2 // egress takes it
	both        = steers | redirects
	ifUnserved  = 4 // steer takes it if its destination is withheld
	neverSteers = 8 // steer does not take it, not even with Settings.Unserved
	hostLinkIx  = 4242
)

type verdictCase struct {
	name string
	p    pkt
	want int
}

func verdictCases() []verdictCase {
	// Errors about packets, from a router or the far end to the source address of the packet.
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
		{"frontend's port of another protocol", pkt{src: client4, dst: vip4, proto: udp, sport: 999, dport: 80},
			ifUnserved},
		{"frontend's port, other address", pkt{src: client4, dst: plain4, proto: tcp, sport: 999, dport: 80}, kernel},
		{"frontend's port as source", pkt{src: vip4, dst: client4, proto: tcp, sport: 80, dport: 999}, kernel},
		{"frontend, port bytes swapped", pkt{src: client4, dst: vip4, proto: tcp, sport: 999, dport: 80 << 8},
			ifUnserved},
		{"frontend, other protocol", pkt{src: client4, dst: vip4, proto: 47, sport: 999, dport: 80}, kernel},
		{"frontend, IPv4 options", pkt{src: client4, dst: vip4, proto: tcp, sport: 999, dport: 80, optionBytes: 40},
			steers},

		{"VIP without frontends", pkt{src: client4, dst: bareVIP4, proto: tcp, dport: 80}, ifUnserved},
		{"VIP of the node, unserved", pkt{src: client4, dst: nodeVIP4, proto: tcp, dport: 22}, kernel},
		{"VIP of the node, node port", pkt{src: client4, dst: nodeVIP4, proto: tcp, dport: 30080}, steers},

		{"node port TCP v4", pkt{src: client4, dst: node4, proto: tcp, dport: 30080}, steers},
		{"node port TCP v6", pkt{src: client6, dst: node6, proto: tcp, dport: 30080}, steers},
		{"node port UDP v4", pkt{src: client4, dst: node4, proto: udp, dport: 30053}, steers},
		{"node port SCTP v4", pkt{src: client4, dst: node4, proto: sctp, dport: 30009}, steers},
		{"node port SCTP v6", pkt{src: client6, dst: node6, proto: sctp, dport: 30019}, steers},
		{"node port SCTP of v6 only, v4", pkt{src: client4, dst: node4, proto: sctp, dport: 30019}, kernel},
		{"node port of TCP, SCTP", pkt{src: client4, dst: node4, proto: sctp, dport: 30080}, kernel},
		{"node's own SCTP", pkt{src: client4, dst: node4, proto: sctp, dport: 2905}, kernel},
		{"VIP's unserved SCTP port", pkt{src: client4, dst: vip4, proto: sctp, dport: 80}, ifUnserved},
		{"node port, highest", pkt{src: client4, dst: node4, proto: tcp, dport: 65535}, steers},
		{"node port of v4 only, v6", pkt{src: client6, dst: node6, proto: udp, dport: 30053}, kernel},
		{"node port of v6 only, v4", pkt{src: client4, dst: node4, proto: tcp, dport: 30090}, kernel},
		{"node port of another protocol", pkt{src: client4, dst: node4, proto: udp, dport: 30080}, kernel},
		{"node port's neighbour", pkt{src: client4, dst: node4, proto: tcp, dport: 30081}, kernel},
		{"node port at a VIP", pkt{src: client4, dst: vip4, proto: tcp, dport: 30080}, ifUnserved},
		{"node's SSH", pkt{src: client4, dst: node4, proto: tcp, dport: 22}, kernel},
		{"node port 0", pkt{src: client4, dst: node4, proto: tcp}, kernel},

		{"reply, first port of the range", pkt{src: plain4, dst: snat4, proto: tcp, sport: 80, dport: snatFirst},
			steers},
		{"reply, last port of the range", pkt{src: plain6, dst: snat6, proto: udp, sport: 80, dport: snatFirst +
			snatCount - 1}, steers},
		{"reply SCTP", pkt{src: plain4, dst: snat4, proto: sctp, sport: 80, dport: snatFirst + 1}, steers},
		{"reply SCTP v6", pkt{src: plain6, dst: snat6, proto: sctp, sport: 80, dport: snatFirst + 1}, steers},
		{"SCTP port after the range", pkt{src: plain4, dst: snat4, proto: sctp, sport: 80, dport: snatFirst +
			snatCount}, kernel},
		{"port before the range", pkt{src: plain4, dst: snat4, proto: tcp, sport: 80, dport: snatFirst - 1}, kernel},
		{"port after the range", pkt{src: plain4, dst: snat4, proto: tcp, sport: 80, dport: snatFirst + snatCount},
			kernel},
		{"reply to an address of ours alone, port before the range", pkt{src: plain4, dst: own4, proto: tcp, sport: 80,
			dport: snatFirst - 1}, steers},
		{"reply to an address of ours alone, port after the range", pkt{src: plain6, dst: own6, proto: udp, sport: 80,
			dport: snatFirst + snatCount}, steers},
		{"reply to an address of ours alone, first port", pkt{src: plain4, dst: own4, proto: sctp, sport: 9,
			dport: 1024}, steers},
		{"reply to an address of ours alone, node port", pkt{src: plain4, dst: own4, proto: tcp, sport: 80,
			dport: 30080}, steers},
		{"system port at an address of ours alone", pkt{src: plain4, dst: own4, proto: tcp, sport: 80, dport: 1023},
			kernel},
		{"system port at an address of ours alone v6", pkt{src: plain6, dst: own6, proto: tcp, sport: 80, dport: 22},
			kernel},
		{"reply to a port of live flows", pkt{src: plain4, dst: snat4, proto: tcp, sport: 80, dport: keptReply},
			steers},
		{"reply to a port of live flows v6", pkt{src: plain6, dst: snat6, proto: udp, sport: 80, dport: keptReply},
			steers},
		{"reply to a port of live flows SCTP", pkt{src: plain4, dst: snat4, proto: sctp, sport: 80, dport: keptReply},
			steers},
		{"reply to a port of live flows of another protocol", pkt{src: plain4, dst: snat4, proto: udp, sport: 80,
			dport: keptReply}, kernel},
		{"reply to a port of live flows of the other family", pkt{src: plain6, dst: snat6, proto: tcp, sport: 80,
			dport: keptReply}, kernel},
		{"port of live flows at an address that is not SNAT", pkt{src: plain4, dst: node4, proto: tcp, sport: 80,
			dport: keptReply}, kernel},
		{"error about a packet from a port of live flows",
			about(3, pkt{src: snat4, dst: plain4, proto: tcp, sport: keptReply, dport: 80}), steers},
		{"range at an address that is not SNAT", pkt{src: plain4, dst: node4, proto: tcp, sport: 80, dport: snatFirst},
			kernel},

		{"kept source v4", pkt{src: kept4, dst: client4, proto: tcp, sport: 8080, dport: 999}, both},
		{"kept source v6", pkt{src: kept6, dst: client6, proto: tcp, sport: 8080, dport: 999}, both},
		{"kept source SCTP v4", pkt{src: kept4, dst: client4, proto: sctp, sport: 9, dport: 999}, both},
		{"kept source SCTP v6", pkt{src: kept6, dst: client6, proto: sctp, sport: 9, dport: 999}, both},
		{"kept source, SCTP from its TCP port", pkt{src: kept4, dst: client4, proto: sctp, sport: 8080, dport: 999},
			kernel},
		{"kept source, other port", pkt{src: kept4, dst: client4, proto: tcp, sport: 8081, dport: 999}, kernel},
		{"kept source, other protocol", pkt{src: kept4, dst: client4, proto: udp, sport: 8080, dport: 999}, kernel},
		{"to a kept source", pkt{src: client4, dst: kept4, proto: tcp, sport: 999, dport: 8080}, kernel},
		{"kept source is the node's own: from outside a forgery", pkt{src: node4, dst: client4, proto: tcp, sport: 8080,
			dport: 999}, redirects},
		{"kept source that is a VIP", pkt{src: bareVIP4, dst: client4, proto: tcp, sport: 8080, dport: 999},
			both},
		{"kept source to the node", pkt{src: kept4, dst: node4, proto: tcp, sport: 8080, dport: 45678}, kernel},
		{"kept source to the node v6", pkt{src: kept6, dst: node6, proto: tcp, sport: 8080, dport: 45678}, kernel},
		{"kept source to an address without node ports", pkt{src: kept4, dst: local4, proto: tcp, sport: 8080,
			dport: 45678}, kernel},
		{"kept source to an address without node ports v6", pkt{src: kept6, dst: local6, proto: sctp, sport: 9,
			dport: 45678}, kernel},
		{"kept source to a VIP that is the node's", pkt{src: kept4, dst: nodeVIP4, proto: tcp, sport: 8080,
			dport: 45678}, kernel},
		{"kept source to a node port", pkt{src: kept4, dst: node4, proto: tcp, sport: 8080, dport: 30080}, steers},
		{"fragment from a kept source to the node", pkt{src: kept4, dst: local4, proto: tcp, fragOffset: 1480}, kernel},
		{"error about the node's packet to a kept backend",
			about(3, pkt{src: local4, dst: kept4, proto: tcp, sport: 45678, dport: 8080}), kernel},
		{"kept source, other address", pkt{src: plain4, dst: client4, proto: tcp, sport: 8080, dport: 999}, kernel},

		{"echo request to a VIP v4", pkt{src: client4, dst: vip4, proto: icmp4, icmpType: 8}, steers},
		{"echo request to a VIP v6", pkt{src: client6, dst: vip6, proto: icmp6, icmpType: 128}, steers},
		{"echo request to a VIP without frontends", pkt{src: client4, dst: bareVIP4, proto: icmp4, icmpType: 8},
			steers},
		{"echo reply to a VIP", pkt{src: client4, dst: vip4, proto: icmp4, icmpType: 0}, kernel},
		{"echo request to the node", pkt{src: client4, dst: node4, proto: icmp4, icmpType: 8}, kernel},
		{"echo request to an SNAT address", pkt{src: client6, dst: snat6, proto: icmp6, icmpType: 128}, kernel},
		{"echo request from a kept source", pkt{src: kept4, dst: client4, proto: icmp4, icmpType: 8}, kernel},
		{"ICMPv6 type in ICMP", pkt{src: client4, dst: vip4, proto: icmp4, icmpType: 128}, kernel},
		{"ICMP in IPv6", pkt{src: client6, dst: vip6, proto: icmp4, icmpType: 8}, kernel},
		{"neighbour solicitation to a VIP", pkt{src: client6, dst: vip6, proto: icmp6, icmpType: 135, ttl: 255},
			neverSteers},
		{"neighbour advertisement to a VIP", pkt{src: client6, dst: vip6, proto: icmp6, icmpType: 136, ttl: 255},
			neverSteers},
		{"neighbour solicitation that a router forwarded", pkt{src: client6, dst: vip6, proto: icmp6, icmpType: 135},
			ifUnserved},
		{"timestamp request to a VIP", pkt{src: client4, dst: vip4, proto: icmp4, icmpType: 13}, ifUnserved},
		{"GRE to a VIP", pkt{src: client4, dst: vip4, proto: gre}, ifUnserved},
		{"UDP-Lite to a VIP v6", pkt{src: client6, dst: vip6, proto: 136}, ifUnserved},
		{"ESP to a source address of ours alone", pkt{src: plain4, dst: own4, proto: esp}, ifUnserved},
		{"ESP to a VIP that is the node's", pkt{src: client4, dst: nodeVIP4, proto: esp}, kernel},
		{"echo request to a source address of ours alone", pkt{src: plain6, dst: own6, proto: icmp6, icmpType: 128},
			ifUnserved},

		{"error about a frontend's packet", about(3, pkt{src: vip4, dst: client4, proto: tcp, sport: 80, dport: 999}),
			steers},
		{"error about a frontend's packet v6", about(2, pkt{src: vip6, dst: client6, proto: udp, sport: 53,
			dport: 999}), steers},
		{"error about a node port's packet", about(11, pkt{src: node4, dst: client4, proto: tcp, sport: 30080,
			dport: 999}), steers},
		{"error about a frontend's SCTP", about(3, pkt{src: vip4, dst: client4, proto: sctp, sport: 9, dport: 999}),
			steers},
		{"error about a frontend's SCTP v6", about(2, pkt{src: vip6, dst: client6, proto: sctp, sport: 9, dport: 999}),
			steers},
		{"error about a node port's SCTP", about(3, pkt{src: node4, dst: client4, proto: sctp, sport: 30009,
			dport: 999}), steers},
		{"error about an SNAT SCTP packet", about(11, pkt{src: snat4, dst: plain4, proto: sctp, sport: snatFirst,
			dport: 9}), steers},
		{"error about an SNAT SCTP packet v6", about(3, pkt{src: snat6, dst: plain6, proto: sctp, sport: snatFirst,
			dport: 9}), steers},
		{"error about an SCTP packet to a kept backend", about(3, pkt{src: client4, dst: kept4, proto: sctp, sport: 999,
			dport: 9}), both},
		{"error about the node's own SCTP", about(3, pkt{src: node4, dst: client4, proto: sctp, sport: 2905,
			dport: 999}), kernel},
		{"error about the node's own packet", about(3, pkt{src: node4, dst: client4, proto: tcp, sport: 22,
			dport: 999}), kernel},
		{"error about an SNAT packet", about(12, pkt{src: snat4, dst: plain4, proto: udp, sport: snatFirst, dport: 53}),
			steers},
		{"error about an SNAT packet v6", about(1, pkt{src: snat6, dst: plain6, proto: tcp, sport: snatFirst,
			dport: 80}), steers},
		{"error about a port outside the range", about(3, pkt{src: snat4, dst: plain4, proto: udp, sport: 53,
			dport: 53}), kernel},
		{"error about a packet to a kept backend", about(3, pkt{src: client4, dst: kept4, proto: tcp, sport: 999,
			dport: 8080}), both},
		{"error about a packet to a kept backend v6", about(3, pkt{src: client6, dst: kept6, proto: tcp, sport: 999,
			dport: 8080}), both},
		{"error about a packet to another port of it", about(3, pkt{src: client4, dst: kept4, proto: tcp, sport: 999,
			dport: 22}), kernel},
		{"error about a packet from a kept backend", about(3, pkt{src: kept4, dst: client4, proto: tcp, sport: 8080,
			dport: 999}), kernel},
		{"error about strangers", about(3, pkt{src: client4, dst: plain4, proto: tcp, sport: 999, dport: 80}), kernel},
		{"error about an echo reply of a VIP", about(3, pkt{src: vip4, dst: client4, proto: icmp4}), kernel},
		{"error about IPv4 options", about(3, pkt{src: vip4, dst: client4, proto: tcp, sport: 80, dport: 999,
			optionBytes: 12}), steers},
		{"error about extension headers", about(2, pkt{src: vip6, dst: client6, proto: tcp, sport: 80,
			ext: []ex{{kind: dstopts, units: 2}}}), steers},
		{"error about a fragment of ours", about(11, pkt{src: snat4, dst: plain4, proto: udp, fragOffset: 1480}),
			steers},
		{"error about a fragment to a kept backend",
			about(11, pkt{src: client4, dst: kept4, proto: udp, fragOffset: 1480}), both},
		{"error about a fragment of strangers", about(11, pkt{src: client4, dst: plain4, proto: udp, fragOffset: 1480}),
			kernel},
		{"redirect", about(5, pkt{src: vip4, dst: client4, proto: tcp, sport: 80, dport: 999}), kernel},
		{"source quench (RFC 6633)", about(4, pkt{src: vip4, dst: client4, proto: tcp, sport: 80, dport: 999}), kernel},
		{"ICMPv6 informational", about(129, pkt{src: vip6, dst: client6, proto: tcp, sport: 80, dport: 999}), kernel},
		{"error to another address than it quotes", pkt{src: plain4, dst: node4, proto: icmp4, icmpType: 3,
			quote: &pkt{src: vip4, dst: client4, proto: tcp, sport: 80, dport: 999}}, kernel},

		{"first fragment to a VIP", pkt{src: client4, dst: vip4, proto: udp, dport: 53, fragMore: true}, steers},
		{"later fragment to a VIP", pkt{src: client4, dst: vip4, proto: udp, fragOffset: 1480}, steers},
		{"later fragment to the node", pkt{src: client4, dst: node4, proto: udp, fragOffset: 1480, fragMore: true},
			steers},
		{"later fragment to an SNAT address", pkt{src: plain4, dst: snat4, proto: icmp4, fragOffset: 8}, steers},
		{"fragment, IPv4 options", pkt{src: client4, dst: vip4, proto: udp, fragOffset: 8, optionBytes: 8}, steers},
		{"fragment to a stranger", pkt{src: client4, dst: plain4, proto: udp, fragOffset: 1480}, kernel},
		{"later fragment from a kept source", pkt{src: kept4, dst: client4, proto: tcp, fragOffset: 1480}, both},
		{"first fragment from a kept source", pkt{src: kept4, dst: client4, proto: udp, sport: 1, fragMore: true},
			both},
		{"fragment to a kept source", pkt{src: client4, dst: kept4, proto: tcp, fragOffset: 1480}, kernel},
		{"fragment from a kept source that is the node's", pkt{src: node4, dst: client4, proto: tcp, fragOffset: 8},
			redirects},
		{"first fragment to a VIP v6", pkt{src: client6, dst: vip6, proto: udp, dport: 53, ext: frag6(more)}, steers},
		{"later fragment to a VIP v6", pkt{src: client6, dst: vip6, proto: udp, ext: frag6(1480)}, steers},
		{"later fragment from a kept source v6", pkt{src: kept6, dst: client6, proto: tcp, ext: frag6(1480 | more)},
			both},
		{"atomic fragment v6, frontend", pkt{src: client6, dst: vip6, proto: udp, dport: 53, ext: frag6(0)}, steers},
		{"atomic fragment v6, reserved bits", pkt{src: client6, dst: vip6, proto: udp, dport: 53, ext: frag6(6)},
			steers},
		{"atomic v6, unserved", pkt{src: client6, dst: vip6, proto: udp, dport: 54, ext: frag6(0)}, ifUnserved},
		{"fragment behind options v6", pkt{src: client6, dst: vip6, proto: udp, ext: []ex{{kind: hopopts, units: 1},
			{kind: fragment, units: 1, fragment: 8}}}, steers},
		{"options behind a fragment header v6", pkt{src: client6, dst: vip6, proto: udp,
			ext: []ex{{kind: fragment, units: 1, fragment: 8}, {kind: dstopts, units: 3}}}, steers},

		{"options behind a fragment header v6, to the node", pkt{src: client6, dst: node6, proto: udp,
			ext: []ex{{kind: fragment, units: 1, fragment: 8}, {kind: dstopts, units: 3}}}, kernel},
		{"options behind a fragment header v6, kept source", pkt{src: kept6, dst: client6, proto: tcp,
			ext: []ex{{kind: fragment, units: 1, fragment: 8}, {kind: dstopts, units: 3}}}, both},
		{"AH behind a fragment header v6, to the node", pkt{src: client6, dst: node6, proto: tcp,
			ext: []ex{{kind: fragment, units: 1, fragment: more}, {kind: auth, units: 3}}}, kernel},
		{"options behind a fragment header v6, to an SNAT address", pkt{src: plain6, dst: snat6, proto: udp,
			ext: []ex{{kind: fragment, units: 1, fragment: 8}, {kind: hopopts, units: 1}}}, steers},
		{"fragment behind options v6, to the node", pkt{src: client6, dst: node6, proto: udp,
			ext: []ex{{kind: hopopts, units: 1}, {kind: fragment, units: 1, fragment: 8}}}, steers},
		{"later fragment of ICMP to the node", pkt{src: client4, dst: node4, proto: icmp4, fragOffset: 1480}, steers},
		{"later fragment of ICMPv6 to the node", pkt{src: client6, dst: node6, proto: icmp6, ext: frag6(1480)}, steers},
		{"later fragment of ICMP to the node v6", pkt{src: client6, dst: node6, proto: icmp4, ext: frag6(1480)},
			kernel},
		{"later fragment of SCTP to the node", pkt{src: client4, dst: node4, proto: sctp, fragOffset: 1480}, steers},
		{"first fragment of SCTP to a VIP", pkt{src: client4, dst: vip4, proto: sctp, dport: 9, fragMore: true},
			steers},
		{"later fragment of SCTP to a VIP v6", pkt{src: client6, dst: vip6, proto: sctp, ext: frag6(1480)}, steers},
		{"fragment of SCTP from a kept source", pkt{src: kept4, dst: client4, proto: sctp, fragOffset: 1480}, both},
		{"error about a fragment of the node's ESP",
			about(11, pkt{src: node4, dst: plain4, proto: esp, fragOffset: 1480}), kernel},
		{"error about a fragment of ours v6", about(3, pkt{src: snat6, dst: plain6, proto: udp, ext: frag6(1480)}),
			steers},

		{"hop-by-hop options", pkt{src: client6, dst: vip6, proto: tcp, dport: 80,
			ext: []ex{{kind: hopopts, units: 1}}}, steers},
		{"all extension headers", pkt{src: client6, dst: vip6, proto: tcp, dport: 80,
			ext: []ex{{kind: hopopts, units: 2},
				{kind: dstopts, units: 1}, {kind: routing, units: 3}, {kind: fragment, units: 1},
				{kind: auth, units: 3}, {kind: dstopts, units: 4}}}, steers},
		{"extension headers, echo request", pkt{src: client6, dst: vip6, proto: icmp6, icmpType: 128,
			ext: []ex{{kind: dstopts, units: 1}}}, steers},
		{"extension headers, unserved", pkt{src: client6, dst: node6, proto: tcp, dport: 22,
			ext: []ex{{kind: dstopts, units: 1}}}, kernel},
		{"unknown extension header", pkt{src: client6, dst: vip6, proto: tcp, dport: 80,
			ext: []ex{{kind: 253, units: 1}}}, kernel},
		{"no next header", pkt{src: client6, dst: vip6, proto: 59}, kernel},

		{"broadcast MAC", pkt{src: client4, dst: vip4, proto: tcp, dport: 80, toMAC: 0xff}, kernel},
		{"multicast MAC", pkt{src: client4, dst: vip4, proto: tcp, dport: 80, toMAC: 0x01}, kernel},
	}
	for n := range 10 { // eight headers are walked and a ninth is not
		c := verdictCase{fmt.Sprintf("%d extension headers", n), pkt{src: client6, dst: vip6, proto: tcp, dport: 80},
			steers}
		for range n {
			c.p.ext = append(c.p.ext, ex{kind: dstopts, units: 1})
		}
		if n > 8 {
			c.want = kernel
		}
		cases = append(cases, c)
	}
	// over IPv4 the last three are no extension headers
	for _, proto := range []uint8{esp, gre, ipip, ospf, 0, 51, 60} {
		for _, to := range []string{node4, vip4, snat4} {
			cases = append(cases,
				verdictCase{fmt.Sprintf("first fragment of protocol %d to %s", proto, to),
					pkt{src: client4, dst: to, proto: proto, fragMore: true}, kernel},
				verdictCase{fmt.Sprintf("later fragment of protocol %d to %s", proto, to),
					pkt{src: client4, dst: to, proto: proto, fragOffset: 1480}, kernel})
		}
		cases = append(cases, verdictCase{fmt.Sprintf("fragment of protocol %d from a kept source", proto),
			pkt{src: kept4, dst: client4, proto: proto, fragOffset: 1480}, kernel})
	}
	for _, proto := range []uint8{esp, gre, ipip, ospf, 59} {
		for _, to := range []string{node6, vip6, snat6} {
			cases = append(cases, verdictCase{fmt.Sprintf("fragment of protocol %d to %s", proto, to),
				pkt{src: client6, dst: to, proto: proto, ext: frag6(1480 | more)}, kernel})
		}
	}
	return cases
}
