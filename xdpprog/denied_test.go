//go:build root

package xdpprog

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// denyOf returns entries without an end.
func denyOf(prefixes ...string) (list []Denial) {
	for _, p := range prefixes {
		list = append(list, Denial{Prefix: netip.MustParsePrefix(p)})
	}
	return list
}

// denied reports whether steer drops a frame because its client is denied.
func (b *rig) denied(t *testing.T, frame []byte) bool {
	t.Helper()
	before, err := b.Counters()
	must(t, err)
	action := run(t, b.steer, frame, nil)
	after, err := b.Counters()
	must(t, err)
	if after.DeniedDropped == before.DeniedDropped {
		return false
	}
	if action != xdpDrop {
		t.Errorf("action %d, and it was counted as denied", action)
	}
	return true
}

// TestDenied: which packets of a denied source are a client's, under zero to two VLAN tags. Packets
// of other sources are not dropped, and no packet is when the list is empty.
func TestDenied(t *testing.T) {
	const other4, other6 = "100.65.7.7", "2001:db9:7::7" // other slices: without a hint
	const near4, near6 = "100.64.7.8", "2001:db8:7::8"
	rules := fixture()
	rules.Frontends = append(rules.Frontends, key(local4, udp, 53), key(own4, udp, 53))
	b := newRig(t, Settings{SNATFirst: snatFirst, SNATCount: snatCount, HostLinkIndex: hostLinkIx, LocalFirst: 32000,
		LocalCount: 1000, Unserved: true}, rules)
	must(t, b.OpenNodePort(false, udp, 32053))
	b.beat(-1) // without the list, packets pass to the kernel
	first := []ex{{kind: fragment, units: 1, fragment: more}}
	later := []ex{{kind: fragment, units: 1, fragment: 8 | more}}
	answer4 := pkt{src: vip4, dst: client4, proto: tcp, sport: 80, dport: 999}
	for _, c := range []struct {
		name string
		p    pkt
		want bool
	}{
		{"frontend TCP", pkt{src: client4, dst: vip4, proto: tcp, dport: 80}, true},
		{"frontend UDP", pkt{src: client4, dst: vip4, proto: udp, dport: 53}, true},
		{"frontend SCTP", pkt{src: client4, dst: vip4, proto: sctp, dport: 9}, true},
		{"frontend TCP v6", pkt{src: client6, dst: vip6, proto: tcp, dport: 80}, true},
		{"frontend, IPv4 options", pkt{src: client4, dst: vip4, proto: tcp, dport: 80, optionBytes: 8}, true},
		{"echo", pkt{src: client4, dst: vip4, proto: icmp4, icmpType: 8}, true},
		{"echo v6", pkt{src: client6, dst: vip6, proto: icmp6, icmpType: 128}, true},
		{"ICMP error about an answer to it", pkt{src: plain4, dst: vip4, proto: icmp4, icmpType: 3, quote: &answer4},
			true},
		{"unserved port", pkt{src: client4, dst: vip4, proto: tcp, dport: 81}, true},
		{"unserved protocol", pkt{src: client4, dst: vip4, proto: gre}, true},
		{"first fragment", pkt{src: client4, dst: vip4, proto: udp, dport: 53, fragMore: true}, true},
		{"later fragment", pkt{src: client4, dst: vip4, proto: udp, fragOffset: 1480}, true},
		{"first fragment v6", pkt{src: client6, dst: vip6, proto: udp, dport: 53, ext: first}, true},
		{"later fragment v6", pkt{src: client6, dst: vip6, proto: udp, ext: later}, true},

		{"node port", pkt{src: client4, dst: node4, proto: tcp, dport: 30080}, true},
		{"node port v6", pkt{src: client6, dst: node6, proto: tcp, dport: 30080}, true},
		{"node port, first fragment", pkt{src: client4, dst: node4, proto: udp, dport: 30053, fragMore: true}, true},
		{"node port, first fragment v6", pkt{src: client6, dst: node6, proto: tcp, dport: 30080, ext: first}, true},
		{"node port, later fragment: perhaps the node's", pkt{src: client4, dst: node4, proto: udp, fragOffset: 1480},
			false},
		{"port of the node's own, first fragment", pkt{src: client4, dst: node4, proto: udp, dport: 32053,
			fragMore: true}, false},
		{"frontend at the node", pkt{src: client4, dst: local4, proto: udp, dport: 53}, true},
		{"frontend at the node, first fragment: perhaps the node's", pkt{src: client4, dst: local4, proto: udp,
			dport: 53, fragMore: true}, false},
		{"frontend at a source address", pkt{src: client4, dst: own4, proto: udp, dport: 53}, true},
		{"frontend at a source address, first fragment", pkt{src: client4, dst: own4, proto: udp, dport: 53,
			fragMore: true}, true},

		{"reply", pkt{src: client4, dst: snat4, proto: tcp, sport: 80, dport: snatFirst}, false},
		{"reply v6", pkt{src: client6, dst: snat6, proto: tcp, sport: 80, dport: snatFirst}, false},
		{"reply at an own source address", pkt{src: client4, dst: own4, proto: tcp, sport: 80, dport: 4000}, false},
		{"reply at an own source address v6", pkt{src: client6, dst: own6, proto: tcp, sport: 80, dport: 4000}, false},
		{"reply, fragment", pkt{src: client4, dst: snat4, proto: udp, dport: snatFirst, fragMore: true}, false},
		{"reply, later fragment", pkt{src: client4, dst: own4, proto: udp, fragOffset: 1480}, false},
		{"kept source", pkt{src: kept4, dst: client4, proto: tcp, sport: 8080}, false},
		{"the node's SSH", pkt{src: client4, dst: node4, proto: tcp, dport: 22}, false},
		{"the node's BGP v6", pkt{src: client6, dst: node6, proto: tcp, dport: 179}, false},
		{"neighbour discovery", pkt{src: client6, dst: vip6, proto: icmp6, icmpType: 135, ttl: 255}, false},
		{"another host's", pkt{src: client4, dst: plain4, proto: tcp, dport: 80}, false},
		{"source is near", pkt{src: near4, dst: vip4, proto: tcp, dport: 80}, false},
		{"source is near v6", pkt{src: near6, dst: vip6, proto: tcp, dport: 80}, false},
		{"source is another", pkt{src: other4, dst: vip4, proto: tcp, dport: 80}, false},
		{"source is another v6", pkt{src: other6, dst: vip6, proto: tcp, dport: 80}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, tags := range [][]uint16{nil, {0x8100}, {0x88a8, 0x8100}} {
				must(t, b.SetDenied(denyOf(client4+"/32", client6+"/128", kept4+"/32")))
				if got := b.denied(t, c.p.frame(tags...)); got != c.want {
					t.Errorf("%d VLAN tags: dropped as denied: %v, want %v", len(tags), got, c.want)
				}
				must(t, b.SetDenied(nil))
				if b.denied(t, c.p.frame(tags...)) {
					t.Errorf("%d VLAN tags: dropped as denied, and the list is empty", len(tags))
				}
			}
		})
	}
}

// TestDeniedPrefixes: prefixes of any length; an entry ends by the program's clock, but not while a
// wider entry lasts; each entry counts its packets, also when another one changes.
func TestDeniedPrefixes(t *testing.T) {
	b := newRig(t, Settings{}, fixture())
	b.beat(time.Second)
	from := func(src string) bool {
		t.Helper()
		p := pkt{src: src, dst: vip4, proto: tcp, dport: 80}
		if p.v6() {
			p.dst = vip6
		}
		return b.denied(t, p.frame())
	}
	now := uint64(bootNanos(t))
	over, later := now-1, now+uint64(time.Hour)
	until := func(prefix string, nanos uint64) Denial {
		return Denial{Prefix: netip.MustParsePrefix(prefix), UntilNanos: nanos}
	}
	list := slices.Concat(denyOf("10.0.0.0/8", "100.64.0.0/15", "192.0.2.128/25", "2001:db8::/31", "fd00:1::/48"),
		[]Denial{until("203.0.113.0/24", later), until("203.0.113.7/32", over), until("203.0.113.8/32", 0),
			until("198.18.0.1/32", over), until("198.18.0.2/32", later)})
	must(t, b.SetDenied(list))
	for src, want := range map[string]bool{
		"10.255.0.1": true, "11.0.0.1": false, "100.65.255.255": true, "100.66.0.0": false, "192.0.2.128": true,
		"192.0.2.127": false, "2001:db9:ffff::1": true, "2001:dba::1": false, "fd00:1:0:1::1": true,
		"fd00:1:1::1": false,
		"203.0.113.7": true, "203.0.113.8": true, "203.0.113.9": true, "198.18.0.1": false, "198.18.0.2": true,
	} {
		if got := from(src); got != want {
			t.Errorf("%s is denied: %v, want %v", src, got, want)
		}
	}
	must(t, b.SetDenied(slices.Concat(list[1:], denyOf("172.16.0.0/12"))))
	if from("10.255.0.1") || !from("172.31.0.1") || !from("100.65.0.1") {
		t.Error("the list was not replaced")
	}
	must(t, b.SetSettings(Settings{}))
	if !from("100.65.0.1") {
		t.Error("other settings end the list")
	}
	packets, err := b.Denied()
	must(t, err)
	if got, want := packets[netip.MustParsePrefix("100.64.0.0/15")], uint64(3); got != want || len(packets) != 10 {
		t.Errorf("%d packets of 100.64.0.0/15, want %d; %d entries, want 10", got, want, len(packets))
	}
}

// TestDeniedForSuccessor: the list stays in force without a daemon, and the next one takes it over.
func TestDeniedForSuccessor(t *testing.T) {
	isolate(t)
	c := Config{PinDir: pinDir(t)}
	s := load(t, c)
	must(t, s.SetDenied(denyOf(client4+"/32")))
	must(t, s.Close(false))
	s = load(t, c)
	must(t, s.SetSettings(Settings{}))
	raw, err := s.readSettings()
	must(t, err)
	packets, err := s.Denied()
	must(t, err)
	if raw.Deny == 0 || len(packets) != 1 {
		t.Errorf("deny is %d, and there are %d entries, want one", raw.Deny, len(packets))
	}
	must(t, s.Close(true))
}

// TestDeniedFull: a list that is too long changes nothing.
func TestDeniedFull(t *testing.T) {
	b := newRig(t, Settings{}, fixture())
	must(t, b.SetDenied(denyOf(client4+"/32")))
	if err := b.SetDenied(manyDenied(MaxDenied + 1)); err == nil {
		t.Error("a list without room was accepted")
	}
	if packets, err := b.Denied(); err != nil || len(packets) != 1 {
		t.Errorf("%d entries, want one: %v", len(packets), err)
	}
	must(t, b.SetDenied(manyDenied(MaxDenied)))
	if packets, err := b.Denied(); err != nil || len(packets) != MaxDenied {
		t.Errorf("%d entries, want %d: %v", len(packets), MaxDenied, err)
	}
}

// manyDenied returns n single addresses, which are far from each other, in both families by turns.
func manyDenied(n int) (list []Denial) {
	for i := range uint32(n) {
		x := i * 0x9e3779b1
		a := netip.AddrFrom4([4]byte{byte(1 + x>>24%0xdf), byte(x >> 16), byte(x >> 8), byte(i)})
		if i%2 == 1 {
			a = netip.AddrFrom16([16]byte{0x20, 1, byte(x >> 24), byte(x >> 16), byte(x >> 8), byte(x), byte(i >> 8),
				byte(i)})
		}
		list = append(list, Denial{Prefix: netip.PrefixFrom(a, a.BitLen())})
	}
	return list
}

// BenchmarkDenied measures program steer like BenchmarkSteer, with lists of several sizes, for
// clients that are not denied: by the hints, or after a search, and for one that is.
func BenchmarkDenied(b *testing.B) {
	if unix.Geteuid() != 0 {
		b.Fatal("needs root: BPF programs")
	}
	socket, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW, 0) // not bound: the test run sends nothing to it
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(socket)
	s, err := Load(Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close(true)
	if err := s.SetSettings(Settings{SNATFirst: snatFirst, SNATCount: snatCount}); err != nil {
		b.Fatal(err)
	}
	if _, err := s.Reconcile(fixture()); err != nil {
		b.Fatal(err)
	}
	i, err := s.instance(steerProgSteer)
	if err != nil {
		b.Fatal(err)
	}
	defer i.Close()
	if err := i.Maps[steerMapXsks].Put(uint32(0), uint32(socket)); err != nil {
		b.Fatal(err)
	}
	frontend := func(src, dst string) pkt { return pkt{src: src, dst: dst, proto: tcp, dport: 80} }
	for _, n := range []int{0, 1, 10_000} {
		list := manyDenied(n)
		list = append(list, denyOf("100.66.0.1/32", "2001:db9::1/128")[:2*min(n, 1)]...)
		if err := s.SetDenied(list); err != nil {
			b.Fatal(err)
		}
		for name, c := range map[string]struct {
			p    pkt
			want uint32
		}{
			"other": {frontend(client4, vip4), xdpRedirect}, "other v6": {frontend(client6, vip6), xdpRedirect},
			"searched": {frontend("100.66.0.2", vip4), xdpRedirect},
			"denied":   {frontend("100.66.0.1", vip4), xdpDrop}, "denied v6": {frontend("2001:db9::1", vip6), xdpDrop},
		} {
			if n == 0 {
				c.want = xdpRedirect
			}
			b.Run(fmt.Sprintf("%d entries/%s", n, name), func(b *testing.B) {
				got, d, err := i.Programs[steerProgSteer].Benchmark(c.p.frame(), b.N, nil)
				if err != nil || got != c.want {
					b.Fatalf("action %d, want %d: %v", got, c.want, err)
				}
				b.ReportMetric(float64(d.Nanoseconds()), "ns/packet")
			})
		}
	}
}
