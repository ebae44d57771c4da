package fastpath_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/test/bed/size"
)

// TestGarbageFragments: during a flood of first fragments without later ones and of later fragments
// without a first one, a valid datagram whose fragments arrive within 100 ms passes completely, in
// order and in reverse.
func TestGarbageFragments(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	one := func() string { return fmt.Sprintf("192.0.2.%d", 1+random.IntN(250)) }
	many := func() string {
		return fmt.Sprintf("100.%d.%d.%d", random.IntN(256), random.IntN(256), random.IntN(256))
	}
	for _, tt := range []struct {
		name      string
		perSecond int // of each kind
		from      func() string
		c         labConfig
	}{
		{"64/s, one network", 64, one, labConfig{heldFragments: 64, fragments: 80}},
		{"64/s, any source", 64, many, labConfig{heldFragments: 64, fragments: 80}},
		{"10,000/s, one network", 10_000, one, labConfig{heldFragments: 256}},
		{"10,000/s, any source", 10_000, many, labConfig{heldFragments: 2048, fragments: 8192, frames: 8192}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, tt.c)
			g, id, due := l.workers[0], uint32(0), 0
			inject := func(parts ...[]byte) {
				for _, part := range parts {
					g.nic.Inject(part)
				}
			}
			garbage := func(at int, text string) {
				id++
				whole := headertest.UDP(join(tt.from(), 7), join(vip4, 99), text).Bytes()
				inject(headertest.Split(whole, 80, id%60000)[at])
			}
			const interval = 99 // ms
			datagrams := 20
			if size.Race {
				datagrams = 4
			}
			var late [][]byte
			passed := 0
			for ms := range interval*datagrams + 2 {
				if ms%interval == 0 {
					inject(late...)
					late = nil
				}
				if n := ms / interval; ms%interval == 0 && n < datagrams {
					whole := headertest.UDP(join(client4, 5), join(vip4, 53), string(make([]byte, 200))).Bytes()
					parts, soon := headertest.Split(whole, 80, uint32(60000+n)), 1
					if n%2 == 1 {
						slices.Reverse(parts)
						soon = 2
					}
					inject(parts[:soon]...)
					late = parts[soon:]
				}
				for due += tt.perSecond; due >= 1000; due -= 1000 {
					garbage(0, string(make([]byte, 100)))
					garbage(1, string(make([]byte, 100)))
				}
				l.step(time.Millisecond)
				for frame, ok := g.nic.Take(nil); ok; frame, ok = g.nic.Take(nil) {
					var p header.Packet
					if header.Parse(frame, &p) == reason.None && p.Tuple.Dst == addr(backend4) {
						passed++
					}
				}
			}
			if passed != 3*datagrams {
				t.Errorf("%d of %d honest fragments passed; drops: %v", passed, 3*datagrams, l.drops())
			}
		})
	}
}

// TestFragmentIdentifications: two clients chose the same identification. Their datagrams leave
// from one SNAT address to one backend with two new identifications, whichever workers handle the
// fragments, and so do the backend's answers. An ICMP error that quotes a sent fragment finds its
// client.
func TestFragmentIdentifications(t *testing.T) {
	const chosen = 0x1234
	for _, tt := range []struct {
		name, vip, backend, router string
		clients                    []string
		icmp, code                 uint8
	}{
		{"IPv4", join(vip4, 53), join(backend4, 5353), "10.0.1.254",
			[]string{join(client4, 5), join("198.51.100.8", 5)}, 3, 1},
		{"IPv6", join(vip6, 53), join(backend6, 5353), "2001:db8:1::fe",
			[]string{join(client6, 5), join("2001:db8:c::8", 5)}, 2, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, labConfig{workers: 2})
			seen := map[uint32]bool{chosen: true, 1: true, 2: true}
			send := func(src, dst string, id uint32) (first []byte, p header.Packet) {
				whole := headertest.UDP(src, dst, string(make([]byte, 1800))).Bytes()
				for at, part := range headertest.Split(whole, 1400, id) {
					g := l.workers[at%2]
					g.nic.Inject(part)
					l.step(time.Microsecond)
					frame, ok := g.nic.Take(nil)
					var later header.Packet
					if !ok || header.Parse(frame, &later) != reason.None {
						t.Fatalf("nothing was sent, or it does not parse; drops: %v", l.drops())
					}
					switch {
					case at == 0 && seen[later.FragmentID]:
						t.Errorf("a datagram of %s leaves with %#x", src, later.FragmentID)
					case at == 0:
						first, p = frame, later
						seen[p.FragmentID] = true
					case later.FragmentID != p.FragmentID:
						t.Errorf("parts leave with %#x and %#x", p.FragmentID, later.FragmentID)
					}
				}
				return first, p
			}
			for n, client := range tt.clients {
				frame, p := send(client, tt.vip, chosen)
				snat, _ := ends(&p.Tuple)
				send(tt.backend, snat.String(), uint32(1+n))
				l.send(0, headertest.ICMPError(tt.router, snat.Addr().String(), tt.icmp, tt.code, 1300, frame, 120))
				if _, p := l.out(l.workers[0].nic); p.Tuple.Dst.Netip() != netip.MustParseAddrPort(client).Addr() {
					t.Errorf("the error about a packet of %s goes to %v", client, p.Tuple.Dst)
				}
			}
		})
	}
}

// TestFragmentsWithExtensions: over IPv6, options may be between the fragment header and the
// transport header, so later fragments do not name their transport protocol. They are translated in
// any order and in both directions. Datagrams that are not translated go to the kernel completely.
func TestFragmentsWithExtensions(t *testing.T) {
	options := headertest.Extension{Type: headertest.Destination, Data: []byte{1, 4, 0, 0, 0, 0}}
	split := func(p *headertest.Packet, id uint32) [][]byte {
		p.Extensions = []headertest.Extension{options, options}
		return headertest.Split(p.Bytes(), 800, id)
	}
	for _, reversed := range []bool{false, true} {
		t.Run(fmt.Sprintf("reversed %v", reversed), func(t *testing.T) {
			l := newLab(t, labConfig{workers: 2})
			snat := ""
			send := func(src, dst string, id uint32) {
				t.Helper()
				p := headertest.UDP(src, dst, string(make([]byte, 2000)))
				parts := split(p, id)
				if reversed {
					slices.Reverse(parts)
				}
				for i, part := range parts {
					l.workers[i%2].nic.Inject(part)
					l.step(time.Microsecond)
				}
				l.step(2 * time.Millisecond)
				bytes := 0
				for _, g := range l.workers {
					for frame, ok := g.nic.Take(nil); ok; frame, ok = g.nic.Take(nil) {
						var p header.Packet
						if r := header.Parse(frame, &p); r != reason.None {
							t.Fatalf("sent %x: %v", frame, r)
						}
						bytes += int(p.FragmentBytes())
						if s, _ := ends(&p.Tuple); p.Fragment == header.FirstFragment {
							snat = s.String()
						}
					}
				}
				if bytes != 16+8+2000 || len(l.drops()) != 0 {
					t.Errorf("%d bytes came through, want 2024; drops %v", bytes, l.drops())
				}
			}
			send(join(client6, 40000), join(vip6, 53), 7)
			send(join(backend6, 5353), snat, 9)
		})
	}
	t.Run("of the node", func(t *testing.T) {
		l := newLab(t, labConfig{})
		g := l.workers[0]
		esp := headertest.UDP(join(client6, 1), join(snat6, 1), string(make([]byte, 2000)))
		esp.Proto = 50
		for _, part := range append(split(esp, 7), split(headertest.SCTP(join(client6, 1), join(snat6, 1), 0), 8)...) {
			g.nic.Inject(part)
			l.step(time.Microsecond)
		}
		if n := g.host.Loop(); n < 4 || len(l.drops()) != 0 {
			t.Errorf("%d fragments went to the kernel; drops %v", n, l.drops())
		}
	})
}
