package fastpath_test

import (
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// again opens a connection on the ports of one that its client has reset, and reports whether it is
// established.
func (l *lab) again(client string) bool {
	l.t.Helper()
	vip := join(ruleVIP, 80)
	l.send(0, headertest.TCP(client, vip, tcpSYN))
	frame, ok := l.workers[0].nic.Take(nil)
	if !ok {
		return false
	}
	var p header.Packet
	header.Parse(frame, &p)
	snat, end := ends(&p.Tuple)
	l.answers(0, header.ProtoTCP, client, vip, snat.String(), end.String())
	return true
}

func (l *lab) reset(client string) {
	l.t.Helper()
	l.send(0, headertest.TCP(client, join(ruleVIP, 80), tcpRST))
	l.out(l.workers[0].nic)
}

// TestLimitsOfConnectionsOpenedAgain: a client resets its connections and opens them again from the
// same ports, which needs no new flow. The limits apply to these connections as well.
func TestLimitsOfConnectionsOpenedAgain(t *testing.T) {
	const limit, ports = 5, 15
	for name, limits := range map[string]services.Limits{
		"connections of a source":      {SourceConnections: limit},
		"connections of a service":     {Connections: limit},
		"new connections of a source":  {SourceNewConnections: limit},
		"new connections of a service": {NewConnections: limit},
	} {
		t.Run(name, func(t *testing.T) {
			l := limitLab(t, limits)
			perSecond := limits.SourceNewConnections+limits.NewConnections != 0
			client := func(n int) string { return join(client4, uint16(40000+n)) }
			for n := range ports {
				if perSecond {
					l.step(1100 * time.Millisecond)
				}
				l.stands(0, header.ProtoTCP, client(n), join(ruleVIP, 80))
				l.reset(client(n))
			}
			l.step(2 * time.Second)
			opened := 0
			for n := range ports {
				if l.again(client(n)) {
					opened++
				}
			}
			syn := tuple(header.ProtoTCP, client(ports-1), join(ruleVIP, 80))
			x := l.explainer().Explain(syn, true, flowtable.Time(l.now))
			if l.drops()[x.Verdict.Reason.String()] == 0 {
				t.Errorf("explained as %v, dropped as %v", x.Verdict, l.drops())
			}
			if opened != limit {
				t.Errorf("%d connections were opened again at once, want %d; drops %v", opened, limit, l.drops())
			}
		})
	}
}
