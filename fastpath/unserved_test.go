package fastpath_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

const ownSNAT4, ownSNAT6 = "10.0.1.3", "2001:db8:1::3" // source addresses that the node does not have

// unservedCase is a packet to an address that only the gateway has, and the expected result.
type unservedCase struct {
	name      string
	packet    *headertest.Packet
	reason    reason.Drop
	icmp      [2]uint8 // type and code of the expected error
	anyErrors bool     // an error is expected
	pointer   uint32   // pointer of a "parameter problem"
}

func raw(src, dst string, proto uint8, extensions ...headertest.Extension) *headertest.Packet {
	return &headertest.Packet{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Proto: proto,
		Payload: make([]byte, 40), Extensions: extensions}
}

func icmpMessage(src, dst string, icmpType uint8) *headertest.Packet {
	p := headertest.Echo(src, dst, 1, 1, false)
	p.ICMPType = icmpType
	return p
}

func unservedCases() (list []unservedCase) {
	dropped := func(name string, r reason.Drop, p *headertest.Packet) {
		list = append(list, unservedCase{name: name, packet: p, reason: r})
	}
	refused := func(name string, r reason.Drop, p *headertest.Packet, icmpType, code uint8, pointer uint32) {
		list = append(list, unservedCase{name, p, r, [2]uint8{icmpType, code}, true, pointer})
	}
	for name, proto := range map[string]uint8{"IPIP": 4, "6in4": 41, "GRE": 47, "ESP": 50, "AH": 51, "DCCP": 33,
		"UDP-Lite": 136, "IGMP": 2, "ICMPv6 in IPv4": 58, "reserved": 255} {
		if proto == 58 { // no error about a packet that may be an error
			dropped(name, reason.Protocol, raw(client4, vip4, proto))
		} else {
			refused(name, reason.Protocol, raw(client4, vip4, proto), header.ICMPUnreachable, 2, 0)
		}
	}
	for name, proto := range map[string]uint8{"IPIP v6": 4, "GRE v6": 47, "ESP v6": 50, "AH v6": 51, "DCCP v6": 33,
		"UDP-Lite v6": 136, "mobility": 135, "HIP": 139, "experiment": 253} {
		refused(name, reason.Protocol, raw(client6, vip6, proto), header.ICMPv6ParameterProblem, 1, 6)
	}
	hops := headertest.Extension{Type: headertest.HopByHop, Data: make([]byte, 6)}
	options := headertest.Extension{Type: headertest.Destination, Data: make([]byte, 14)}
	options.Data[0], options.Data[1] = 30, 12 // an option to skip
	refused("behind options", reason.Protocol, raw(client6, vip6, 253, hops, options),
		header.ICMPv6ParameterProblem, 1, 48)
	routing := headertest.Extension{Type: headertest.Routing, Data: []byte{4, 1, 0, 0, 0, 0}}
	dropped("routing header", reason.IPv6RoutingHeader, raw(client6, vip6, 6, routing))
	dropped("no next header", reason.Protocol, raw(client6, vip6, 59))
	for name, icmpType := range map[string]uint8{"echo reply": 0, "router advertisement": 9, "router solicitation": 10,
		"timestamp": 13, "information": 15, "address mask": 17, "redirect": 5, "source quench": 4,
		"extended echo": 42} {
		dropped(name, reason.ICMPType, icmpMessage(client4, vip4, icmpType))
	}
	for name, icmpType := range map[string]uint8{"echo reply v6": 129, "MLD": 131, "redirect v6": 137,
		"node information": 139, "unknown error": 100} {
		dropped(name, reason.ICMPType, icmpMessage(client6, vip6, icmpType))
	}
	sent := headertest.UDP(join(vip4, 53), join(client4, 9), "answer").Bytes()
	dropped("error about no flow", reason.ICMPNoFlow, headertest.ICMPError(client4, vip4, 3, 3, 0, sent, -1))
	sent = headertest.UDP(join(ownSNAT4, 2000), join(backend4, 9), "question").Bytes()
	dropped("error about no flow, source address", reason.ICMPNoFlow, headertest.ICMPError(backend4, ownSNAT4, 3, 3, 0,
		sent, -1))
	refused("TCP", reason.FrontendRejected, headertest.TCP(join(client4, 1), join(vip4, 81), headertest.SYN),
		header.ICMPUnreachable, 3, 0)
	refused("UDP v6", reason.FrontendRejected, headertest.UDP(join(client6, 1), join(vip6, 81), "x"),
		header.ICMPv6Unreachable, 4, 0)
	refused("SCTP", reason.FrontendRejected, headertest.SCTP(join(client4, 1), join(vip4, 81), header.SCTPInit),
		header.ICMPUnreachable, 3, 0)
	last := headertest.UDP(join(client4, 1), join(vip4, 81), "x")
	last.TTL = 1
	refused("TTL 1", reason.FrontendRejected, last, header.ICMPUnreachable, 3, 0)
	dropped("late answer", reason.NoFlow, headertest.UDP(join(backend4, 53), join(ownSNAT4, 2000), "x"))
	dropped("system port of a source address", reason.NoFlow,
		headertest.UDP(join(backend6, 53), join(ownSNAT6, 22), "x"))
	refused("GRE to a source address", reason.Protocol, raw(backend4, ownSNAT4, 47), header.ICMPUnreachable, 2, 0)
	dropped("forged port", reason.SpoofedSource, headertest.UDP(join(node4, 1), join(vip4, 81), "x"))
	dropped("forged protocol", reason.SpoofedSource, raw(node4, vip4, 47))
	return list
}

// TestNothingGoesBack: no packet to an address that the gateway has and the node does not have
// reaches the kernel, which would send it back to the router. It is answered, or dropped with a
// reason.
func TestNothingGoesBack(t *testing.T) {
	for _, policy := range []services.UnservedPolicy{services.UnservedReject, services.UnservedDrop,
		services.UnservedPass} {
		for _, tt := range unservedCases() {
			t.Run(tt.name, func(t *testing.T) {
				l := newLab(t, labConfig{edit: func(b *services.Builder) {
					b.Settings().UnservedPort = policy
					b.SetAddr(addr(ownSNAT4), services.AddrSNAT)
					b.SetAddr(addr(ownSNAT6), services.AddrSNAT)
				}})
				g := l.workers[0]
				l.send(0, tt.packet)
				if to := tt.packet.Dst.String(); policy == services.UnservedPass && to != ownSNAT4 && to != ownSNAT6 {
					return // each step has checked the laws
				}
				l.wantDrop(tt.reason, 1)
				if tt.anyErrors && policy == services.UnservedReject {
					frame, p := l.out(g.nic)
					if got := [2]uint8{p.ICMPType, p.ICMPCode}; got != tt.icmp {
						t.Errorf("the error is %v, want %v", got, tt.icmp)
					}
					if p.Tuple.Src != header.AddrFrom(tt.packet.Dst) || p.Tuple.Dst != header.AddrFrom(tt.packet.Src) {
						t.Errorf("the error goes from %v to %v", p.Tuple.Src, p.Tuple.Dst)
					}
					if got := binary.BigEndian.Uint32(frame[p.L4+4:]); got != tt.pointer {
						t.Errorf("the error points to %d, want %d", got, tt.pointer)
					}
				}
				l.nothing(g.nic, g.host)
			})
		}
	}
}

// TestFragmentsOfUnserved: the first fragment of an unserved datagram is answered with an error;
// later fragments are neither answered nor sent to the kernel.
func TestFragmentsOfUnserved(t *testing.T) {
	for _, tt := range []struct {
		name   string
		packet *headertest.Packet
		reason reason.Drop
		errors int
	}{
		{"GRE", raw(client4, vip4, 47), reason.Protocol, 1},
		{"GRE v6", raw(client6, vip6, 47), reason.Protocol, 1},
		{"UDP", headertest.UDP(join(client4, 1), join(vip4, 81), "datagram"), reason.FrontendRejected, 1},
		{"timestamp", icmpMessage(client4, vip4, 13), reason.ICMPType, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, labConfig{edit: reject})
			tt.packet.Payload = make([]byte, 3000)
			parts := headertest.Split(tt.packet.Bytes(), 1000, 7)
			for _, part := range parts {
				l.workers[0].nic.Inject(part)
			}
			l.step(time.Microsecond)
			l.wantDrop(tt.reason, uint64(len(parts)))
			for range tt.errors {
				l.out(l.workers[0].nic)
			}
			l.nothing(l.workers[0].nic, l.workers[0].host)
		})
	}
}

func reject(b *services.Builder) { b.Settings().UnservedPort = services.UnservedReject }

// TestRefusalsLeaveRoomForPathMTU: errors about a flood of rejected packets are limited, and do not
// suppress errors about packets that are too big.
func TestRefusalsLeaveRoomForPathMTU(t *testing.T) {
	l := newLab(t, labConfig{edit: reject})
	g := l.workers[0]
	l.open(join(client4, 40000), join(vip4, 80))
	hop := *l.hops.Hop(hopBackend)
	hop.MTU = 1400
	l.hops.SetHop(hopBackend, &hop)
	for range 200 {
		l.send(0, raw(client4, vip4, 47))
	}
	if sent, limited := g.stats.Generated.Load(), g.stats.ICMPLimited.Load(); sent > 50 || sent+limited != 200 {
		t.Errorf("%d errors, %d limited, want at most 50 of 200", sent, limited)
	}
	g.nic.Loop()
	big := headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.ACK)
	big.DF, big.Payload = true, make([]byte, 1440)
	l.send(0, big)
	if _, p := l.out(g.nic); p.ICMPCode != header.ICMPFragmentationNeeded {
		t.Errorf("the error has code %d", p.ICMPCode)
	}
}

// TestEchoInFragments: an echo request of any size, with fragments in any order and at any workers,
// gets the same reply as from a host, with every policy.
func TestEchoInFragments(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, tt := range []struct {
		name, from, to string
		sizes          []int
	}{
		{"IPv4", client4, vip4, []int{1473, 2000, 9000, 65507}},
		{"IPv6", client6, vip6, []int{1473, 2000, 9000, 65507, 65527}},
		{"source address", backend4, ownSNAT4, []int{2000}},
	} {
		for _, size := range tt.sizes {
			for _, policy := range []services.UnservedPolicy{services.UnservedReject, services.UnservedPass} {
				l := newLab(t, labConfig{workers: 2, edit: func(b *services.Builder) {
					b.Settings().UnservedPort = policy
					b.SetAddr(addr(ownSNAT4), services.AddrSNAT)
				}})
				request := headertest.Echo(tt.from, tt.to, 77, 3, false)
				request.Payload = make([]byte, size)
				for i := range request.Payload {
					request.Payload[i] = byte(random.Uint32())
				}
				want := headertest.Echo(tt.to, tt.from, 77, 3, true)
				want.Payload = request.Payload
				parts := headertest.Split(request.Bytes(), 1448, 0x1234)
				random.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
				for i, part := range parts {
					l.workers[i%2].nic.Inject(part)
				}
				for range 4 {
					l.step(20 * time.Millisecond)
				}
				got := l.reassembled(len(parts))
				if whole := want.Bytes(); !bytes.Equal(got, headertest.IP(whole)[len(headertest.IP(whole))-len(got):]) {
					t.Errorf("%s, %d bytes, policy %d: another reply; drops: %v", tt.name, size, policy, l.drops())
				}
				n := l.workers[0].stats.EchoReplies.Load() + l.workers[1].stats.EchoReplies.Load()
				if n != uint64(len(parts)) {
					t.Errorf("%s: %d fragments of replies counted, want %d", tt.name, n, len(parts))
				}
			}
		}
	}
}

// reassembled takes fragments of one datagram from all workers' NICs and joins their payload.
func (l *lab) reassembled(fragments int) []byte {
	l.t.Helper()
	whole := make([]byte, 1<<16)
	total, id := 0, uint32(0)
	for _, g := range l.workers {
		for frame, ok := g.nic.Take(nil); ok; frame, ok = g.nic.Take(nil) {
			var p header.Packet
			if r := header.Parse(frame, &p); r != reason.None || p.Fragment == header.NotFragment {
				l.t.Fatalf("sent %x: %v", frame, r)
			}
			if fragments--; id != 0 && p.FragmentID != id {
				l.t.Errorf("identifications %#x and %#x", id, p.FragmentID)
			}
			id = p.FragmentID
			total += copy(whole[p.FragmentOffset:], frame[p.L4:p.End])
		}
	}
	if fragments != 0 {
		l.t.Errorf("%d fragments are missing; drops: %v", fragments, l.drops())
	}
	return whole[:total]
}

// TestEchoFragmentsElsewhere: fragments of an echo request are not answered if they overlap, have a
// source address of the node, or are for an address of the node.
func TestEchoFragmentsElsewhere(t *testing.T) {
	first := func(from, to string, ident uint16) []byte {
		p := headertest.Echo(from, to, ident, 3, false)
		p.Payload = make([]byte, 2000)
		return headertest.Split(p.Bytes(), 1000, 5)[0]
	}
	for _, tt := range []struct {
		name     string
		parts    [][]byte
		reason   reason.Drop
		answered int
		kernel   bool
	}{
		{"overlap", [][]byte{first(client4, vip4, 1), first(client4, vip4, 2)}, reason.FragmentOverlap, 1, false},
		{"forged", [][]byte{first(node4, vip4, 1)}, reason.SpoofedSource, 0, false},
		{"a VIP of the node", [][]byte{first(client4, localVIP, 1)}, reason.None, 0, true},
	} {
		l := newLab(t, labConfig{edit: func(b *services.Builder) {
			reject(b)
			b.SetAddr(addr(localVIP), services.AddrVIP|services.AddrLocal)
		}})
		g := l.workers[0]
		for _, part := range tt.parts {
			g.nic.Inject(part)
		}
		l.step(time.Microsecond)
		if tt.reason != reason.None {
			l.wantDrop(tt.reason, 1)
		}
		for range tt.answered {
			if _, ok := g.nic.Take(nil); !ok {
				t.Errorf("%s: not answered", tt.name)
			}
		}
		if _, ok := g.host.Take(nil); ok != tt.kernel {
			t.Errorf("%s: to the kernel: %v", tt.name, ok)
		}
		l.nothing(g.nic, g.host)
	}
}
