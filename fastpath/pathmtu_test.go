package fastpath_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// tooBig describes the error that announces a path MTU.
func tooBig(from, to string, mtu uint32, quoted []byte) *headertest.Packet {
	if a := addr(to); a.Is4() {
		return headertest.ICMPError(from, to, header.ICMPUnreachable, header.ICMPFragmentationNeeded, mtu, quoted, 40)
	}
	return headertest.ICMPError(from, to, header.ICMPv6PacketTooBig, 0, mtu, quoted, 60)
}

// TestPathMTU: a client's announcement lowers the backend's path MTU for all clients. Announcements
// of real tunnels pass, and announcements that no link on the way can have made are dropped.
func TestPathMTU(t *testing.T) {
	for _, family := range []struct{ name, client, vip, router, backend string }{
		{"v4", client4, vip4, "198.51.100.1", backend4}, {"v6", client6, vip6, "2001:db8:c::1", backend6},
	} {
		for _, tt := range []struct {
			name   string
			mtu    uint32
			quoted int // bytes of the quoted segment
			want   reason.Drop
		}{
			{"tunnel of 1,400", 1400, 1500, reason.None},
			{"tunnel of 1,280", 1280, 1500, reason.None},
			{"just too big", 1400, 1401, reason.None},
			{"just below the floor", 1279, 1500, reason.ICMPMTUFloor},
			{"the minimum that Linux accepts", 552, 1500, reason.ICMPMTUFloor},
			{"none", 0, 1500, reason.ICMPMTUFloor},
			{"a segment that fits", 1400, 1400, reason.ICMPMTUQuote},
			{"a short segment", 1280, 60, reason.ICMPMTUQuote},
		} {
			for _, fromBackend := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/backend %v", family.name, tt.name, fromBackend), func(t *testing.T) {
					l := newLab(t, labConfig{})
					g := l.workers[0]
					_, snat, be := l.open(join(family.client, 40000), join(family.vip, 80))
					if fromBackend {
						sent := l.long(tt.quoted, join(family.client, 40000), join(family.vip, 80))
						var p header.Packet
						header.Parse(sent, &p)
						l.send(0, tooBig(family.backend, p.Tuple.Src.String(), tt.mtu, sent))
					} else {
						l.send(0, tooBig(family.router, family.vip, tt.mtu, l.long(tt.quoted, be, snat)))
					}
					if tt.want != reason.None {
						l.nothing(g.nic, g.host)
						l.wantDrop(tt.want, 1)
						return
					}
					frame, p := l.out(g.nic)
					if mtu := binary.BigEndian.Uint32(frame[p.L4+4:]); mtu != tt.mtu {
						t.Errorf("announces %d, want %d", mtu, tt.mtu)
					}
				})
			}
		}
	}
}

// TestPathMTUOfFragmentable: a router fragments a packet without DF, so an announcement about one
// is dropped.
func TestPathMTUOfFragmentable(t *testing.T) {
	l := newLab(t, labConfig{})
	_, snat, be := l.open(join(client4, 40000), join(vip4, 80))
	p := headertest.TCP(be, snat, headertest.ACK)
	p.Payload = make([]byte, 1460)
	l.send(0, p)
	sent, _ := l.out(l.workers[0].nic)
	l.send(0, tooBig("198.51.100.1", vip4, 1400, sent))
	l.wantDrop(reason.ICMPMTUQuote, 1)
}

// TestPathMTURate: announcements from the clients of one network are limited per second, for all
// routers together, and do not use up the limit of other networks. Errors without an MTU are not
// counted.
func TestPathMTURate(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	quote := func(client string) []byte {
		_, snat, be := l.open(join(client, 40000), join(vip4, 80))
		return l.long(1500, be, snat)
	}
	flood, honest := quote(client4), quote("198.51.101.7")
	for i := range 1000 {
		l.send(0, tooBig(fmt.Sprintf("192.0.2.%d", 2+i%200), vip4, 1400, flood))
	}
	if n := g.nic.Loop(); n < 50 || n > 52 || l.drops()["icmp_mtu_limit"] != uint64(1000-n) {
		t.Errorf("%d of 1,000 within 1 ms passed, want the burst of 50; drops %v", n, l.drops())
	}
	l.send(0, tooBig("198.51.101.1", vip4, 1400, honest))
	l.out(g.nic)
	l.send(0, headertest.ICMPError("198.51.100.1", vip4, header.ICMPUnreachable, 1, 0, flood, 40))
	l.out(g.nic)
	l.step(time.Second)
	l.send(0, tooBig("198.51.100.1", vip4, 1400, flood))
	l.out(g.nic)
}

// TestErrorsAsRoutersSendThem: routers quote a packet with their changes, or in a half-finished
// state, quote more or less of it, and send from any of their addresses. The quoted packet is
// identified by its addresses and ports, which must belong to a flow.
func TestErrorsAsRoutersSendThem(t *testing.T) {
	set := func(at int, v ...byte) func(ip []byte) []byte {
		return func(ip []byte) []byte { copy(ip[at:], v); return ip }
	}
	whole := func(ip []byte) []byte { return ip }
	for _, tt := range []struct {
		name, router string
		change       func(ip []byte) []byte // of the quoted packet
		rest         uint32                 // of the ICMP header, besides the MTU
		want         reason.Drop
	}{
		{"whole", "192.0.2.1", whole, 0, reason.None},
		{"header and 8 bytes", "192.0.2.1", func(ip []byte) []byte { return ip[:28] }, 0, reason.None},
		{"header and 7 bytes", "192.0.2.1", func(ip []byte) []byte { return ip[:27] }, 0, reason.ICMPHeader},
		{"one hop further, checksum as it was", "192.0.2.1", set(8, 62), 0, reason.None},
		{"TTL 0, checksum as it was", "192.0.2.1", set(8, 0), 0, reason.None},
		{"checksum 0", "192.0.2.1", set(10, 0, 0), 0, reason.None},
		{"checksum of nothing", "192.0.2.1", set(10, 0xab, 0xcd), 0, reason.None},
		{"another DSCP", "192.0.2.1", set(1, 0xb8), 0, reason.None},
		{"congestion was experienced", "192.0.2.1", set(1, 3), 0, reason.None},
		{"its header length is added to its length", "192.0.2.1", set(2, 0x05, 0xf0), 0, reason.None},
		{"length in the byte order of a host", "192.0.2.1", set(2, 0xdc, 0x05), 0, reason.None},
		{"extensions behind 128 bytes", "192.0.2.1", func(ip []byte) []byte {
			return append(ip[:128], 0x20, 0, 0, 0, 0, 8, 1, 1, 0, 1, 2, 3)
		}, 32 << 16, reason.None},
		{"of a private network", "10.9.9.9", whole, 0, reason.None},
		{"of a carrier's network", "100.64.0.1", whole, 0, reason.None},
		{"of a link without addresses", "169.254.7.7", whole, 0, reason.None},
		{"of a link without addresses, checksum 0", "169.254.7.7", set(10, 0, 0), 0, reason.None},
		{"of the documentation", "203.0.113.77", whole, 0, reason.None},
		{"from this network", "0.0.0.1", whole, 0, reason.MartianSource},
		{"from loopback", "127.0.0.1", whole, 0, reason.MartianSource},
		{"from a group", "224.0.0.1", whole, 0, reason.MartianSource},
		{"about another port", "192.0.2.1", set(22, 0x11, 0x11), 0, reason.ICMPNoFlow},
		{"about another port, of a link without addresses", "169.254.7.7", set(22, 0x11, 0x11), 0, reason.ICMPNoFlow},
		{"about another source", "192.0.2.1", set(12, 203, 0, 113, 200), 0, reason.ICMPNoFlow},
		{"a packet that fits", "192.0.2.1", set(2, 0x05, 0x00), 0, reason.ICMPMTUQuote},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			g := l.workers[0]
			_, snat, be := l.open(join(client4, 40000), join(vip4, 80))
			e := tooBig(tt.router, vip4, 1400|tt.rest, l.long(1500, be, snat))
			quote := headertest.IP(l.long(1500, be, snat))
			e.Payload = tt.change(append([]byte(nil), quote[:300]...))
			l.send(0, e)
			if tt.want != reason.None {
				l.nothing(g.nic, g.host)
				l.wantDrop(tt.want, 1)
				return
			}
			frame, ok := g.nic.Take(nil)
			var p, inner header.Packet
			if !ok || header.Parse(frame, &p) != reason.None || !header.ChecksumICMP(frame, &p) {
				t.Fatalf("not translated, or badly: %x; drops %v", frame, l.drops())
			}
			l.wantTuple(&p, join(snat4, 0), join(backend4, 0))
			if r := header.ParseInner(frame, &p, &inner); r != reason.None {
				t.Fatalf("quote of what was sent: %v", r)
			}
			l.wantTuple(&inner, be, snat)
		})
	}
}

// TestErrorsFromTheLink: a router on the gateway's link may have only a link-local address.
func TestErrorsFromTheLink(t *testing.T) {
	l := newLab(t, labConfig{})
	_, snat, be := l.open(join(client6, 40000), join(vip6, 80))
	l.send(0, tooBig("fe80::1", vip6, 1400, l.long(1500, be, snat)))
	frame, p := l.out(l.workers[0].nic)
	l.wantTuple(&p, "["+snat6+"]:0", "["+backend6+"]:0")
	var inner header.Packet
	if r := header.ParseInner(frame, &p, &inner); r != reason.None {
		t.Fatal(r)
	}
	l.wantTuple(&inner, be, snat)
}
