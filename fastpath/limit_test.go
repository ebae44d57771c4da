package fastpath_test

import (
	"fmt"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

const otherClient = "198.51.100.77"

// limitLab serves one port, TCP and UDP, with limits.
func limitLab(t *testing.T, limits services.Limits) *lab {
	return newLab(t, labConfig{workers: 2, flows: 1 << 14, frames: 4096, edit: func(b *services.Builder) {
		for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
			id := services.ServiceID(30 + proto)
			f := both(b, id, ruleVIP, proto, set(b, id, 4*uint32(proto), proto, "10.0.1.21", "10.0.1.22"))
			f.Service.Limits = limits
		}
	}})
}

// refused sends a first packet, which must be dropped for reason r.
func (l *lab) refused(worker int, proto uint8, client string, r reason.Drop) {
	l.t.Helper()
	before := l.drops()[r.String()]
	l.send(worker, packet(proto, client, join(ruleVIP, 80), headertest.SYN))
	l.nothing(l.workers[worker].nic, l.workers[worker].host)
	if got := l.drops()[r.String()] - before; got != 1 {
		l.t.Errorf("%s was dropped as %v, want one more %v", client, l.drops(), r)
	}
}

// TestLimits: connections of a source or service up to the limit are established, the next one is
// rejected, and other sources are not affected.
func TestLimits(t *testing.T) {
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		for _, tt := range []struct {
			name   string
			limits services.Limits
			want   reason.Drop
			other  reason.Drop // of another source's connection
			later  reason.Drop // of the first source's connection a second later
		}{
			{"connections of a source", services.Limits{SourceConnections: 5},
				reason.LimitSourceConnections, reason.None, reason.LimitSourceConnections},
			{"new connections of a source", services.Limits{SourceNewConnections: 5},
				reason.LimitSourceRate, reason.None, reason.None},
			{"connections of a service", services.Limits{Connections: 5},
				reason.LimitServiceConnections, reason.LimitServiceConnections, reason.LimitServiceConnections},
			{"new connections of a service", services.Limits{NewConnections: 5},
				reason.LimitServiceRate, reason.LimitServiceRate, reason.None},
			{"none", services.Limits{}, reason.None, reason.None, reason.None},
		} {
			t.Run(fmt.Sprintf("proto %d: %s", proto, tt.name), func(t *testing.T) {
				l := limitLab(t, tt.limits)
				next := uint16(40000)
				opens := func(client string, want reason.Drop) {
					t.Helper()
					next++
					if want != reason.None {
						l.refused(int(next%2), proto, join(client, next), want)
						return
					}
					l.stands(int(next%2), proto, join(client, next), join(ruleVIP, 80))
				}
				for range 5 {
					opens(client4, reason.None)
				}
				opens(client4, tt.want)
				opens(otherClient, tt.other)
				l.step(1100 * time.Millisecond)
				opens(client4, tt.later)
			})
		}
	}
}

// TestLimitGivesBack: when a connection of a source ends, another one is admitted.
func TestLimitGivesBack(t *testing.T) {
	const syn, ack, fin, rst = headertest.SYN, headertest.ACK, headertest.FIN, headertest.RST
	for _, how := range []string{"FIN", "RST", "delete"} {
		t.Run(how, func(t *testing.T) {
			l := limitLab(t, services.Limits{SourceConnections: 2})
			first, vip := join(client4, 40000), join(ruleVIP, 80)
			snat, end := l.begins(0, header.ProtoTCP, first, vip)
			l.answers(0, header.ProtoTCP, first, vip, snat.String(), end.String())
			l.stands(0, header.ProtoTCP, join(client4, 40001), vip)
			l.refused(1, header.ProtoTCP, join(client4, 40002), reason.LimitSourceConnections)
			switch how {
			case "FIN":
				for _, p := range []*headertest.Packet{
					headertest.TCP(first, vip, fin|ack), headertest.TCP(end.String(), snat.String(), fin|ack),
					headertest.TCP(first, vip, ack),
				} {
					l.send(0, p)
					l.out(l.workers[0].nic)
				}
			case "RST":
				l.send(0, headertest.TCP(first, vip, rst))
				l.out(l.workers[0].nic)
			case "delete":
				h, err := l.table.Register()
				if err != nil {
					t.Fatal(err)
				}
				defer h.Close()
				h.Enter(flowtable.Time(l.now))
				p := headertest.TCP(first, vip, syn)
				var parsed header.Packet
				header.Parse(p.Bytes(), &parsed)
				ref, _ := h.Lookup(h.Hash(&parsed.Tuple), &parsed.Tuple, flowtable.Time(l.now))
				h.Delete(ref)
				h.Leave()
			}
			l.stands(1, header.ProtoTCP, join(client4, 40003), vip)
			l.refused(1, header.ProtoTCP, join(client4, 40004), reason.LimitSourceConnections)
		})
	}
}

// TestForgedSYNsLockNobodyOut: a thousand forged SYNs and ACKs from a client's address do not use
// up the client's limits.
func TestForgedSYNsLockNobodyOut(t *testing.T) {
	l := limitLab(t, services.Limits{SourceConnections: 2, SourceNewConnections: 2, Connections: 3, NewConnections: 3})
	for n := range uint16(1000) {
		for _, flags := range []uint8{headertest.SYN, headertest.ACK} {
			l.send(0, packet(header.ProtoTCP, join(client4, 10000+n), join(ruleVIP, 80), flags))
			l.out(l.workers[0].nic)
		}
	}
	l.stands(0, header.ProtoTCP, join(client4, 40001), join(ruleVIP, 80))
	l.stands(1, header.ProtoTCP, join(client4, 40002), join(ruleVIP, 80))
	l.refused(1, header.ProtoTCP, join(client4, 40003), reason.LimitSourceConnections)
}

// TestForgedDataUseUpNoLimit: the connections of a client have ended. Forged data from its address
// do not make them count again.
func TestForgedDataUseUpNoLimit(t *testing.T) {
	const limit = 3
	l := limitLab(t, services.Limits{SourceConnections: limit})
	g, vip := l.workers[0], join(ruleVIP, 80)
	for n := range uint16(limit) {
		client := join(client4, 40000+n)
		snat, end := l.begins(0, header.ProtoTCP, client, vip)
		l.answers(0, header.ProtoTCP, client, vip, snat.String(), end.String())
		for _, p := range []*headertest.Packet{
			headertest.TCP(client, vip, tcpFIN|tcpACK), headertest.TCP(end.String(), snat.String(), tcpFIN|tcpACK),
			headertest.TCP(client, vip, tcpACK),
		} {
			l.send(0, p)
			l.out(g.nic)
		}
		forged := headertest.TCP(client, vip, tcpACK)
		forged.Payload = []byte("forged")
		l.send(0, forged)
		l.out(g.nic)
	}
	l.stands(0, header.ProtoTCP, join(client4, 50000), vip)
}
