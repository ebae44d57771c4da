package fastpath_test

import (
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// TestStepProbesBoundedly: connections have taken all source ports towards a backend. For any
// number of SYNs to it, no step probes more ports than its budget allows, and flows to another
// backend are still opened.
func TestStepProbesBoundedly(t *testing.T) {
	const ports, freeProbes, probesPerOpen = 64, 32, 2
	for _, arrive := range []int{fastpath.OpensPerStep, fastpath.BatchSize} {
		l := newLab(t, labConfig{frames: 4096, ring: 512, snat: services.PortRange{First: 20000, Count: ports}})
		g, vip := l.workers[0], join(vip4, 80)
		for n := range uint16(ports) {
			l.stands(0, header.ProtoTCP, join(client4, 1024+n), vip)
		}
		opens := fastpath.OpensPerStep
		if arrive == fastpath.BatchSize {
			opens = opensPerFullStep
		}
		for n := range uint16(arrive) - 1 {
			l.inject(headertest.TCP(join(client4, 30000+n), vip, tcpSYN))
		}
		l.inject(headertest.UDP(join(client4, 30000), join(vip4, 53), "question"))
		l.step(time.Millisecond)
		most := uint64(opens/(1+(ports-freeProbes)/probesPerOpen) + 1)
		if n := l.drops()["snat_ports_exhausted"]; n == 0 || n > most {
			t.Errorf("of %d SYNs, a step found no port for %d, want at most %d", arrive, n, most)
		}
		for range arrive {
			l.step(time.Millisecond)
		}
		if sent := g.nic.Loop(); sent != 1 || g.stats.Held.Load() != 0 {
			t.Errorf("%d packets were sent, want the datagram; %d are held", sent, g.stats.Held.Load())
		}
	}
}
