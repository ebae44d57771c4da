package fastpath_test

import (
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/test/bed/size"
)

// TestConnectionsToOneBackend: an SNAT address that the node does not have uses all ports except
// the system ports, enough for 50,000 connections to one backend without a rejection. An SNAT
// address that the node has uses only the configured range.
func TestConnectionsToOneBackend(t *testing.T) {
	most, few := 50_000, 10_000
	if size.Race {
		most, few = 10_000, 1000
	}
	for _, c := range []struct {
		name  string
		flags services.AddrFlags
		want  int
	}{
		{"the gateway's own", services.AddrSNAT, most},
		{"an address of the node", services.AddrSNAT | services.AddrLocal, few},
		{"an address that accepts node ports", services.AddrSNAT | services.AddrNode, few},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t, labConfig{
				flows: 70_000, halfOpen: 70_000, snat: services.PortRange{First: 20000, Count: uint16(few)},
				edit: func(b *services.Builder) { b.SetAddr(addr(snat4), c.flags) },
			})
			w, made := l.workers[0], 0
			tries := min(most, 2*c.want) // the last free ports are found by chance
			for n := range tries {
				l.now += uint64(5 * time.Microsecond) // all in less than half a second: none is old enough for eviction
				w.nic.Inject(headertest.TCP(join(client4, uint16(1024+n)), join(vip4, 80), headertest.SYN).Bytes())
				w.Step(l.now)
				for frame, ok := w.nic.Take(nil); ok; frame, ok = w.nic.Take(nil) {
					var p header.Packet
					if r := header.Parse(frame, &p); r != reason.None {
						t.Fatal(r)
					}
					port := int(p.Tuple.SrcPort)
					if port < 1024 || c.want < most && (port < 20_000 || port >= 20_000+few) {
						t.Fatalf("source port %d", port)
					}
					made++
				}
			}
			if made != c.want {
				t.Errorf("%d of %d connections have a port, want %d; drops %v", made, tries, c.want, l.drops())
			}
		})
	}
}
