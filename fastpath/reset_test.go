package fastpath_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

func resetUnknown(b *services.Builder) { b.Settings().ResetUnknown = true }

// TestUnknownConnection: a segment of an unknown connection gets the RST that a host would send
// (RFC 9293 section 3.10.7.1), if the gateway takes the place of that host.
func TestUnknownConnection(t *testing.T) {
	const ack = headertest.ACK
	silent := join("203.0.113.63", 80)
	for _, tt := range []struct {
		name, from, to string
		flags          uint8
		reset          bool
		drop           reason.Drop
	}{
		{"data to a VIP", join(client4, 40000), join(vip4, 80), ack | headertest.PSH, true, reason.NoFlow},
		{"data to a VIP, IPv6", join(client6, 40000), join(vip6, 80), ack, true, reason.NoFlow},
		{"data to a node port", join(client4, 40000), join(node4, 30080), ack, true, reason.NoFlow},
		{"the end of a connection", join(client4, 40000), join(vip4, 80), ack | headertest.FIN, true, reason.NoFlow},
		{"an answer to a forged SYN", join(client4, 40000), join(vip4, 80), ack | headertest.SYN, true, reason.NoFlow},
		{"no endpoint left", join(client4, 40000), join(emptyVIP, 80), ack, true, reason.NoFlow},
		{"an RST", join(client4, 40000), join(vip4, 80), headertest.RST, false, reason.NoFlow},
		{"an RST with an ACK", join(client4, 40000), join(vip4, 80), headertest.RST | ack, false, reason.NoFlow},
		{"endpoints elsewhere", join(client4, 40000), join(dropVIP, 80), ack, false, reason.NoFlow},
		{"a client that may not", join(client4, 40000), silent, ack, false, reason.NoFlow},
		{"a ClusterIP", join(client4, 40000), join(clusterIP, 80), ack, false, reason.NoFlow},
		{"from an address of the node", join(node4, 40000), join(vip4, 80), ack, false, reason.SpoofedSource},
		{"from a frontend", join(keepVIP, 80), join(vip4, 80), ack, false, reason.SpoofedSource},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, labConfig{edit: func(b *services.Builder) {
				resetUnknown(b)
				to := set(b, 30, 30, header.ProtoTCP, backend4)
				both(b, 30, "203.0.113.63", header.ProtoTCP, to).Allowed = ranges("192.0.2.0/24")
				rules(b, 31, services.ClusterIP, clusterIP, 80, header.ProtoTCP, services.Rule{Set: to},
					services.Rule{Set: to})
			}})
			g := l.workers[0]
			x := l.explainer().Explain(tuple(header.ProtoTCP, tt.from, tt.to), false, flowtable.Time(l.now))
			if want := tt.reset || tt.flags&headertest.RST != 0; x.Reset != want {
				t.Errorf("explained: RST %v, want %v", x.Reset, want)
			}
			p := headertest.TCP(tt.from, tt.to, tt.flags)
			p.Payload = []byte("data")
			l.send(0, p)
			l.wantDrop(tt.drop, 1)
			if !tt.reset {
				l.nothing(g.nic, g.host)
				return
			}
			frame, out := l.out(g.nic)
			l.wantTuple(&out, tt.to, tt.from)
			seq := binary.BigEndian.Uint32(frame[out.L4+4:])
			if out.TCPFlags != headertest.RST || seq != p.Ack || out.TTL != 64 || out.End-out.L4 != 20 {
				t.Errorf("answered %x, want an RST of sequence number %x", frame, p.Ack)
			}
			if sent := g.stats.Resets.Load(); sent != 1 || g.stats.Generated.Load() != 1 {
				t.Errorf("%d RSTs counted", sent)
			}
		})
	}
}

// TestUnknownConnectionDropped: without an RST by configuration, and always for SCTP.
func TestUnknownConnectionDropped(t *testing.T) {
	l := newLab(t, labConfig{})
	l.send(0, headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.ACK))
	l.nothing(l.workers[0].nic)
	l = newLab(t, labConfig{edit: func(b *services.Builder) {
		resetUnknown(b)
		both(b, 30, ruleVIP, header.ProtoSCTP, set(b, 30, 30, header.ProtoSCTP, backend4))
	}})
	l.send(0, headertest.SCTP(join(client4, 40000), join(ruleVIP, 80), 0))
	l.nothing(l.workers[0].nic)
	l.wantDrop(reason.NoFlow, 1)
}

// TestResetRate: RSTs and ICMP errors do not use up each other's rate.
func TestResetRate(t *testing.T) {
	l := newLab(t, labConfig{edit: resetUnknown})
	g := l.workers[0]
	for i := range uint16(200) {
		l.send(0, headertest.TCP(join(fmt.Sprintf("198.18.%d.1", i), 1000), join(vip4, 80), headertest.ACK))
	}
	sent := g.nic.Loop()
	if sent < 50 || sent > 52 || g.stats.Resets.Load() != uint64(sent) ||
		g.stats.ResetsLimited.Load() != uint64(200-sent) {
		t.Errorf("%d RSTs for 200 segments in 200 µs, want the burst of 50; counted %d, limited %d", sent,
			g.stats.Resets.Load(), g.stats.ResetsLimited.Load())
	}
	l.send(0, headertest.TCP(join(client4, 1), join(emptyVIP, 80), headertest.SYN))
	if _, p := l.out(g.nic); p.ICMPType != header.ICMPUnreachable {
		t.Errorf("no ICMP error, but %+v", p)
	}
	l.step(time.Second)
	l.send(0, headertest.TCP(join(client4, 1), join(vip4, 80), headertest.ACK))
	l.out(g.nic)
}

// TestAnswersBesideFloods: one kind of answer or one site does not use up the rates of others.
// Floods of SYNs to a frontend without endpoints, and of segments of unknown connections from one
// site, cause ICMP errors and RSTs permanently. Meanwhile each of 40 clients, one every 20 ms, gets
// its RST, its "too big", its "time exceeded" and its "port unreachable".
func TestAnswersBesideFloods(t *testing.T) {
	l := newLab(t, labConfig{edit: resetUnknown})
	g := l.workers[0]
	hop := *l.hops.Hop(hopBackend)
	hop.MTU = 1000
	l.hops.SetHop(hopBackend, &hop)
	drain := func(client string) (kinds string) {
		for {
			frame, ok := g.nic.Take(nil)
			if !ok {
				return kinds
			}
			var p header.Packet
			if r := header.Parse(frame, &p); r != reason.None {
				t.Fatal(r)
			}
			if p.Tuple.Dst != addr(client) {
				continue
			}
			if p.Tuple.Proto == header.ProtoTCP {
				kinds += " RST"
			} else {
				kinds += fmt.Sprintf(" %d/%d", p.ICMPType, p.ICMPCode)
			}
		}
	}
	for n := range 40 {
		for i := range uint16(200) { // 10,000 a second of each
			l.send(0, headertest.TCP(join("198.18.0.1", 1000+i), join(emptyVIP, 80), headertest.SYN),
				headertest.TCP(join("198.18.0.2", 1000+i), join(vip4, 80), headertest.ACK))
			l.step(100 * time.Microsecond)
		}
		g.nic.Loop()
		client := fmt.Sprintf("198.51.%d.7", n)
		big := headertest.UDP(join(client, 40000), join(vip4, 53), string(make([]byte, 1200)))
		big.DF = true
		late := headertest.UDP(join(client, 40001), join(vip4, 53), "traceroute")
		late.TTL = 1
		l.send(0, headertest.TCP(join(client, 40000), join(vip4, 80), headertest.ACK), big, late,
			headertest.TCP(join(client, 40002), join(emptyVIP, 80), headertest.SYN))
		if got, want := drain(client), " RST 3/4 11/0 3/3"; got != want {
			t.Errorf("client %d got%s, want%s", n, got, want)
		}
	}
}
