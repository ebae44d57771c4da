package fastpath_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

func TestEcho(t *testing.T) {
	for _, tt := range [][2]string{{client4, vip4}, {client6, vip6}} {
		l := newLab(t, labConfig{})
		g := l.workers[0]
		l.send(0, headertest.Echo(tt[0], tt[1], 77, 3, false))
		frame, p := l.out(g.nic)
		want := headertest.Echo(tt[1], tt[0], 77, 3, true).Bytes()
		if p.Tuple.Src != addr(tt[1]) || p.Tuple.Dst != addr(tt[0]) || string(frame[p.L4:]) != string(want[p.L4:]) {
			t.Fatalf("reply %x, want %x", frame, want)
		}
		if g.stats.Generated.Load() != 0 || l.table.Counts().Live != [2]uint64{} {
			t.Fatal("an echo request made a packet or a flow")
		}
	}
}

// open makes a flow through the lab's gateway and returns its packet to the backend.
func (l *lab) open(client, vip string) (frame []byte, snat, backend string) {
	l.t.Helper()
	l.send(0, headertest.TCP(client, vip, headertest.SYN))
	frame, p := l.out(l.workers[0].nic)
	s, d := ends(&p.Tuple)
	return frame, s.String(), d.String()
}

// TestErrorFromBackendSide: a router towards the backend sends "fragmentation needed" about the
// translated packet; the client must recognise its own packet in the error.
func TestErrorFromBackendSide(t *testing.T) {
	tests := []struct {
		name, client, vip, router, snat string
		icmpType, code                  uint8
	}{
		{"v4", join(client4, 40000), join(vip4, 80), "10.0.1.254", snat4, header.ICMPUnreachable, 4},
		{"v6", join(client6, 40000), join(vip6, 80), "2001:db8:1::fe", snat6, header.ICMPv6PacketTooBig, 0},
	}
	for _, tt := range tests {
		for _, quote := range []int{500, quoted8(tt.snat)} {
			l := newLab(t, labConfig{workers: 2})
			l.open(tt.client, tt.vip)
			sent := l.long(1500, tt.client, tt.vip)
			l.send(1, headertest.ICMPError(tt.router, tt.snat, tt.icmpType, tt.code, 1400, sent, quote))
			frame, p := l.out(l.workers[1].nic)
			var inner header.Packet
			if r := header.ParseInner(frame, &p, &inner); r != reason.None {
				t.Fatalf("%s: quoted packet: %v", tt.name, r)
			}
			l.wantTuple(&inner, tt.client, tt.vip)
			vip, client := inner.Tuple.Dst, inner.Tuple.Src
			if p.Tuple.Src != vip || p.Tuple.Dst != client {
				t.Errorf("%s: error from %v to %v", tt.name, p.Tuple.Src, p.Tuple.Dst)
			}
			if mtu := binary.BigEndian.Uint32(frame[p.L4+4:]); mtu != 1400 {
				t.Errorf("%s: MTU %d", tt.name, mtu)
			}
		}
	}
}

// long sends an IP packet of the given number of bytes, and returns the frame that leaves.
func (l *lab) long(bytes int, src, dst string) []byte {
	l.t.Helper()
	p := headertest.TCP(src, dst, headertest.ACK)
	p.DF, p.Payload = true, make([]byte, bytes-quoted8(p.Src.String())-12)
	l.send(0, p)
	frame, _ := l.out(l.workers[0].nic)
	return frame
}

// quoted8 returns the length of an IP header and 8 bytes, the minimum that an error must quote.
func quoted8(ip string) int {
	if a := addr(ip); a.Is4() {
		return 28
	}
	return 48
}

// TestErrorFromClientSide: the other direction, towards the backend.
func TestErrorFromClientSide(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	_, snat, be := l.open(join(client4, 40000), join(vip4, 80))
	reply := l.long(1500, be, snat)
	l.send(0, headertest.ICMPError("198.51.100.1", vip4, header.ICMPUnreachable, 4, 1300, reply, 500))
	frame, p := l.out(g.nic)
	var inner header.Packet
	if r := header.ParseInner(frame, &p, &inner); r != reason.None {
		t.Fatal(r)
	}
	l.wantTuple(&inner, be, snat)
	if p.Tuple.Src != addr(snat4) || p.Tuple.Dst != addr(backend4) {
		t.Errorf("error from %v to %v", p.Tuple.Src, p.Tuple.Dst)
	}
}

func TestForgedErrors(t *testing.T) {
	l := newLab(t, labConfig{})
	sent, _, _ := l.open(join(client4, 40000), join(vip4, 80))
	bad := headertest.ICMPError("10.0.1.254", snat4, header.ICMPUnreachable, 1, 0, sent, -1).Bytes()
	bad[len(bad)-1]++ // the checksum is wrong now
	l.workers[0].nic.Inject(bad)
	l.step(time.Microsecond)
	l.wantDrop(reason.ICMPChecksum, 1)
	// An error about a packet that its addressee did not send.
	l.send(0, headertest.ICMPError(client4, keepVIP, header.ICMPUnreachable, 1, 0, sent, -1))
	if l.drops()["icmp_no_flow"] != 1 {
		t.Fatalf("drops %v", l.drops())
	}
	l.nothing(l.workers[0].nic, l.workers[0].host)
}

// TestPacketTooBig: a packet with DF gets the error, and is not sent.
func TestPacketTooBig(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	_, _, _ = l.open(join(client4, 40000), join(vip4, 80))
	hop := *l.hops.Hop(hopBackend)
	hop.MTU = 1400
	l.hops.SetHop(hopBackend, &hop)
	big := headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.ACK)
	big.DF, big.Payload = true, make([]byte, 1440)
	l.send(0, big)
	l.wantDrop(reason.PacketTooBig, 1)
	frame, p := l.out(g.nic)
	if p.ICMPType != header.ICMPUnreachable || p.ICMPCode != 4 || binary.BigEndian.Uint16(frame[p.L4+6:]) != 1400 {
		t.Fatalf("error %x", frame)
	}
	var inner header.Packet
	header.ParseInner(frame, &p, &inner)
	l.wantTuple(&inner, join(client4, 40000), join(vip4, 80))
}

// TestSplit: a packet without DF is fragmented, and the backend can reassemble it.
func TestSplit(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	hop := *l.hops.Hop(hopBackend)
	hop.MTU = 600
	l.hops.SetHop(hopBackend, &hop)
	payload := make([]byte, 1400)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	l.send(0, headertest.UDP(join(client4, 40000), join(vip4, 53), string(payload)))
	whole := make([]byte, 8+1400)
	seen := 0
	for range 3 {
		frame, p := l.out(g.nic)
		if int(p.End-p.L3) > 600 {
			t.Fatalf("fragment of %d bytes", p.End-p.L3)
		}
		last := int(p.FragmentOffset)+int(p.End-p.L3)-20 == len(whole)
		if more := frame[p.L3+6]&0x20 != 0; more == last {
			t.Fatalf("fragment at %d has the flag More Fragments: %v", p.FragmentOffset, more)
		}
		seen += copy(whole[p.FragmentOffset:], frame[p.L3+20:p.End])
	}
	l.nothing(g.nic)
	if seen != len(whole) || string(whole[8:]) != string(payload) {
		t.Fatalf("%d bytes came through, or others than were sent", seen)
	}
	if g.stats.Generated.Load() != 2 {
		t.Errorf("generated %d, want 2: one packet became three", g.stats.Generated.Load())
	}
}

// TestSplitOptions: the first fragment has all IP options, the others only the options with the
// copied flag (RFC 791 section 3.1), and no error is sent.
func TestSplitOptions(t *testing.T) {
	alert, record := []byte{148, 4, 0, 0}, []byte{7, 7, 4, 0, 0, 0, 0}
	noOps := func(n int) []byte { return bytes.Repeat([]byte{1}, n) }
	for _, tt := range []struct {
		name         string
		first, later []byte
	}{
		{"copied", alert, alert},
		{"not copied", append(noOps(1), record...), noOps(8)},
		{"one of each", slices.Concat(record, alert, []byte{0}), slices.Concat(noOps(7), alert, []byte{0})},
		{"all forty bytes", slices.Concat(alert, []byte{68, 36, 37, 0}, make([]byte, 32)),
			slices.Concat(alert, noOps(36))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			g := l.workers[0]
			hop := *l.hops.Hop(hopBackend)
			hop.MTU = 600
			l.hops.SetHop(hopBackend, &hop)
			sent := headertest.UDP(join(client4, 40000), join(vip4, 53), strings.Repeat("0123456789", 130))
			sent.Options = tt.first
			l.send(0, sent)
			whole, seen := make([]byte, 8+1300), 0
			for range 3 {
				frame, p := l.out(g.nic)
				want := tt.later
				if p.FragmentOffset == 0 {
					want = tt.first
				}
				if got := frame[p.L3+20 : p.L4]; !bytes.Equal(got, want) || p.End-p.L3 > 600 {
					t.Errorf("fragment at %d of %d bytes has options %x, want %x", p.FragmentOffset, p.End-p.L3, got,
						want)
				}
				seen += copy(whole[p.FragmentOffset:], frame[p.L4:p.End])
			}
			l.nothing(g.nic)
			if seen != len(whole) || string(whole[8:]) != string(sent.Payload) || len(l.drops()) != 0 {
				t.Errorf("%d bytes came through, or others than were sent; drops %v", seen, l.drops())
			}
		})
	}
}

// TestSplitIdentification: two clients with one identification, behind one source
// address: the backend must not mix their fragments.
func TestSplitIdentification(t *testing.T) {
	l := newLab(t, labConfig{})
	hop := *l.hops.Hop(hopBackend)
	hop.MTU = 1000
	l.hops.SetHop(hopBackend, &hop)
	owner := map[uint32]string{}
	for _, client := range []string{client4, "198.51.100.8"} {
		p := headertest.UDP(join(client, 4000), join(vip4, 53), string(make([]byte, 1200)))
		p.ID = 77
		l.send(0, p)
		for range 2 {
			frame, out := l.out(l.workers[0].nic)
			if other := owner[out.FragmentID]; other != "" && other != client {
				t.Errorf("clients %s and %s share identification %d: %x", other, client, out.FragmentID, frame)
			}
			owner[out.FragmentID] = client
		}
	}
}

func TestErrorRateIsLimited(t *testing.T) {
	l := newLab(t, labConfig{})
	for i := range 200 {
		l.send(0, headertest.TCP(join(fmt.Sprintf("198.18.%d.1", i), 1000), join(emptyVIP, 80), headertest.SYN))
	}
	sent := l.workers[0].nic.Loop()
	if sent < 50 || sent > 52 || l.workers[0].stats.ICMPLimited.Load() != uint64(200-sent) {
		t.Fatalf("%d errors for 200 packets in 200 µs, want the burst of 50; limited %d", sent,
			l.workers[0].stats.ICMPLimited.Load())
	}
}

func TestUnreachableRoute(t *testing.T) {
	l := newLab(t, labConfig{})
	view := *l.hops.View()
	view.Generation++
	view.Routes = view.Routes.InsertPersist(prefix("10.0.1.0/24"), nexthop.Route{Kind: nexthop.Unreachable})
	l.hops.Publish(&view)
	l.send(0, headertest.TCP(join(client4, 1), join(vip4, 80), headertest.SYN))
	l.wantDrop(reason.NoRoute, 1)
	_, p := l.out(l.workers[0].nic)
	if p.ICMPType != header.ICMPUnreachable || p.ICMPCode != 1 {
		t.Fatalf("ICMP %d/%d, want host unreachable", p.ICMPType, p.ICMPCode)
	}
}
