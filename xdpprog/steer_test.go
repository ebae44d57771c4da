//go:build root

package xdpprog

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/nat/header"
)

// TestSteer tests every rule with a packet that it matches and one that it does not match, under
// zero to two VLAN tags, and cut at every byte: a packet without the bytes that a rule needs passes
// to the kernel. Every packet to a withheld address is taken if its addresses can be read.
func TestSteer(t *testing.T) {
	for _, unserved := range []bool{false, true} {
		b := newRig(t, Settings{SNATFirst: snatFirst, SNATCount: snatCount, HostLinkIndex: hostLinkIx,
			Unserved: unserved}, fixture())
		b.beat(time.Second)
		for _, c := range verdictCases() {
			want := c.want
			if c.p.withheld(unserved) {
				want |= ifUnserved
			} else {
				want &^= ifUnserved
			}
			t.Run(fmt.Sprintf("%s/unserved=%v", c.name, unserved), func(t *testing.T) {
				for _, tags := range [][]uint16{nil, {0x8100}, {0x88a8}, {0x88a8, 0x8100}, {0x8100, 0x8100}} {
					b.checkVerdicts(t, &c.p, tags, want)
				}
				if got := b.wants(t, c.p.frame(0x88a8, 0x8100, 0x8100)); got != kernel {
					t.Errorf("three VLAN tags: verdict %d, want pass to the kernel", got)
				}
			})
		}
	}
}

// checkVerdicts checks the verdict of the whole frame and of every shortened frame.
func (b *rig) checkVerdicts(t *testing.T, p *pkt, tags []uint16, want int) {
	t.Helper()
	whole := p.frame(tags...)
	for n := 14; n <= len(whole); n++ {
		w := want & both
		if n < p.needs(len(tags)) {
			w = kernel
		}
		read := n >= p.needs(len(tags))
		if want&ifUnserved != 0 && n >= p.addresses(len(tags)) && !(read && want&neverSteers != 0) {
			w |= steers
		}
		if got := b.wants(t, whole[:n]); got != w {
			t.Errorf("%d VLAN tags, %d of %d bytes: verdict %d, want %d", len(tags), n, len(whole), got, w)
		}
	}
}

// TestSteerMalformed: a frame without a valid IP packet passes to the kernel.
func TestSteerMalformed(t *testing.T) {
	b := newRig(t, Settings{}, fixture())
	b.beat(time.Second)
	v4 := pkt{src: client4, dst: vip4, proto: tcp, dport: 80}
	v6 := pkt{src: client6, dst: vip6, proto: tcp, dport: 80}
	fragment := pkt{src: client4, dst: vip4, proto: tcp, fragMore: true}
	for _, c := range []struct {
		name string
		p    pkt
		at   int
		to   byte
	}{
		{"IPv4 of version 5", v4, 14, 0x55},
		{"IPv4 header of 16 bytes", v4, 14, 0x44},
		{"IPv4 header of 16 bytes, fragment", fragment, 14, 0x44},
		{"IPv4 header beyond the frame", v4, 14, 0x4f},
		{"IPv6 of version 4", v6, 14, 0x40},
		{"EtherType ARP", v4, 13, 0x06},
		{"EtherType says IPv6", v4, 12, 0x86},
	} {
		t.Run(c.name, func(t *testing.T) {
			frame := c.p.frame()
			if b.verdict(t, frame) != steers {
				t.Fatal("not steered before it was corrupted")
			}
			frame[c.at] = c.to
			if got := b.verdict(t, frame); got != kernel {
				t.Errorf("verdict %d, want the kernel's", got)
			}
		})
	}
}

// TestHeartbeat: without a socket, a matching packet is dropped while the heartbeat is young, and
// passes to the kernel if the heartbeat is old or was never set.
func TestHeartbeat(t *testing.T) {
	b := newRig(t, Settings{HostLinkIndex: hostLinkIx}, fixture())
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
	t.Run("never, on a node younger than pass-after", func(t *testing.T) {
		must(t, b.SetSettings(Settings{PassAfter: 24 * 365 * 100 * time.Hour}))
		b.beat(-1)
		if got := b.verdict(t, steered.frame()); got != kernel {
			t.Errorf("verdict %d, want the kernel's", got)
		}
	})
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

// TestSentBack: egress drops packets that the kernel forwards to an address that is the gateway's
// and not the node's, if they would loop: on the device on which they arrived, on all devices if a
// worker has returned them, and on all devices while the daemon is dead. Packets with another
// destination, or from the node itself, are sent.
func TestSentBack(t *testing.T) {
	const here = 1 // the test run's device is loopback
	b := newRig(t, Settings{HostLinkIndex: hostLinkIx, Unserved: true}, fixture())
	solicitation := pkt{src: client6, dst: vip6, proto: icmp6, icmpType: 135, ttl: 255}
	for _, c := range []struct {
		name    string
		p       pkt
		ingress uint32
		age     time.Duration
		dropped bool
	}{
		{"frontend, same device", pkt{src: client4, dst: vip4, proto: tcp, dport: 80}, here, time.Second, true},
		{"GRE", pkt{src: client4, dst: vip4, proto: gre}, here, time.Second, true},
		{"later fragment of GRE", pkt{src: client4, dst: vip4, proto: gre, fragOffset: 1480}, here, time.Second, true},
		{"no next header", pkt{src: client6, dst: vip6, proto: 59}, here, time.Second, true},
		{"source address of ours alone", pkt{src: plain4, dst: own4, proto: esp}, here, time.Second, true},
		{"from another device", pkt{src: client4, dst: vip4, proto: gre}, 2, time.Second, false},
		{"solicitation from another device", solicitation, 2, time.Second, true},
		{"from another device, daemon dead", pkt{src: client4, dst: vip4, proto: gre}, 2, time.Hour, true},
		{"of the node, daemon dead", pkt{src: node4, dst: vip4, proto: tcp, dport: 80}, 0, time.Hour, false},
		{"returned by a worker", pkt{src: client4, dst: vip4, proto: gre}, hostLinkIx, time.Second, true},
		{"returned by a worker, to a client", pkt{src: vip4, dst: client4, proto: gre}, hostLinkIx, time.Second, false},
		{"to an endpoint, daemon dead", pkt{src: client4, dst: plain4, proto: tcp, dport: 80}, here, time.Hour, false},
		{"to a VIP of the node", pkt{src: client4, dst: nodeVIP4, proto: gre}, here, time.Hour, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.beat(c.age)
			before, err := b.Counters()
			must(t, err)
			got := b.runEgress(t, c.p.frame(), skb{ingress: c.ingress, device: here})
			after, err := b.Counters()
			must(t, err)
			counted := after.SentBackDropped - before.SentBackDropped
			if (got == tcxDrop) != c.dropped || (counted == 1) != c.dropped {
				t.Errorf("verdict %d, %d counted, want a drop: %v", got, counted, c.dropped)
			}
		})
	}
	must(t, b.SetSettings(Settings{HostLinkIndex: hostLinkIx}))
	b.beat(time.Hour)
	if got := b.runEgress(t, (&pkt{src: client4, dst: vip4, proto: gre}).frame(), skb{ingress: here}); got != tcxNext {
		t.Errorf("without Unserved: verdict %d, want none", got)
	}
}

// TestEgressPasses: packets that must never be redirected to the host link.
func TestEgressPasses(t *testing.T) {
	b := newRig(t, Settings{HostLinkIndex: hostLinkIx}, fixture())
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
	for _, from := range []skb{{}, {ingress: 1}} {
		if got := b.runEgress(t, p.frame(), from); got != tcxNext {
			t.Errorf("no host link, %+v: verdict %d, want none", from, got)
		}
	}
}

func TestHostLinkProgram(t *testing.T) {
	b := newRig(t, Settings{}, Rules{})
	if got := run(t, b.hostLink, (&pkt{src: client4, dst: plain4, proto: tcp}).frame(), nil); got != xdpDrop {
		t.Errorf("without a socket: action %d, want drop: a packet must not reach the kernel twice", got)
	}
}

func TestCounters(t *testing.T) {
	b := newRig(t, Settings{HostLinkIndex: hostLinkIx}, fixture())
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

// BenchmarkSteer measures the programs without a driver (ns/packet; ns/op includes the system
// call's 15 ms), with 50,000 frontends. There is a socket, so matching packets are redirected.
// "redirect" is the cost of a program that only looks up the socket.
func BenchmarkSteer(b *testing.B) {
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
	rules := fixture()
	rules.Frontends = append(rules.Frontends, key(local4, tcp, 80), key(local6, tcp, 80), key(local4, udp, 80))
	for n := len(rules.Frontends); n < 50_000; n++ { // as many as a large cluster has
		vip := header.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})
		rules.Frontends = append(rules.Frontends, FrontendKey{Addr: vip, Port: 80, Proto: tcp})
		rules.Addrs[vip] = AddrVIP
	}
	if _, err := s.Reconcile(rules); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name, program string
		p             pkt
		want          uint32
	}{
		{"redirect", steerProgHostLink, pkt{src: client4, dst: plain4, proto: tcp, dport: 80}, xdpRedirect},
		{"frontend", steerProgSteer, pkt{src: client4, dst: vip4, proto: tcp, dport: 80}, xdpRedirect},
		{"frontend v6", steerProgSteer, pkt{src: client6, dst: vip6, proto: tcp, dport: 80}, xdpRedirect},
		{"reply", steerProgSteer, pkt{src: plain4, dst: snat4, proto: tcp, sport: 80, dport: snatFirst}, xdpRedirect},
		{"reply v6", steerProgSteer, pkt{src: plain6, dst: snat6, proto: tcp, sport: 80, dport: snatFirst},
			xdpRedirect},
		{"node port", steerProgSteer, pkt{src: client4, dst: node4, proto: tcp, dport: 30080}, xdpRedirect},
		{"frontend at the node", steerProgSteer, pkt{src: client4, dst: local4, proto: tcp, dport: 80}, xdpRedirect},
		{"frontend at the node v6", steerProgSteer, pkt{src: client6, dst: local6, proto: tcp, dport: 80}, xdpRedirect},
		{"frontend at the node UDP", steerProgSteer, pkt{src: client4, dst: local4, proto: udp, dport: 80},
			xdpRedirect},
		{"kept source", steerProgSteer, pkt{src: kept4, dst: client4, proto: tcp, sport: 8080}, xdpRedirect},
		{"to the node", steerProgSteer, pkt{src: client4, dst: node4, proto: tcp, dport: 22}, xdpPass},
		{"stranger", steerProgSteer, pkt{src: client4, dst: plain4, proto: tcp, dport: 80}, xdpPass},
		{"stranger v6", steerProgSteer, pkt{src: client6, dst: plain6, proto: tcp, dport: 80}, xdpPass},
		{"other MAC", steerProgSteer, pkt{src: client4, dst: vip4, proto: tcp, dport: 80, toMAC: 2}, xdpPass},
	} {
		i, err := s.instance(c.program)
		if err != nil {
			b.Fatal(err)
		}
		if err := i.Maps[steerMapXsks].Put(uint32(0), uint32(socket)); err != nil {
			b.Fatal(err)
		}
		setDestinations(b, i, Destinations{MACs: []MAC{ownMAC}})
		b.Run(c.name, func(b *testing.B) {
			got, d, err := i.Programs[c.program].Benchmark(c.p.frame(), b.N, nil)
			if err != nil {
				b.Fatal(err)
			}
			if got != c.want {
				b.Fatalf("action %d, want %d", got, c.want)
			}
			b.ReportMetric(float64(d.Nanoseconds()), "ns/packet")
		})
		i.Close()
	}
}
