//go:build root

package e2e

import (
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/bench/launch"
	"sluice.dev/sluice/bench/stateless"
	"sluice.dev/sluice/bench/topo"
	"sluice.dev/sluice/control/config"
)

// TestWorkersFollowPackets: workers run where no packets arrive. A sender on one CPU makes its
// packets arrive there, as interrupts do; workers go to the others, and when the sender moves they
// do, too. Packets go on arriving meanwhile.
func TestWorkersFollowPackets(t *testing.T) {
	const port, rate = 9000, 20_000
	cpus, err := config.CPUs()
	if err != nil {
		t.Fatal(err)
	}
	if len(cpus) < 2 {
		t.Skip("this process may use one CPU only")
	}
	l := newLab(t, labConfig{Config: topo.Config{Backends: 1, Queues: 2}, quick: true})
	l.apply(launch.Service{Name: "one-way", UDP: true, Port: port, VIPs: []string{keepVIP4},
		Endpoints: []launch.Endpoint{{Addr: l.Backends[0].Addr4(), Port: port, Node: l.Backends[0].Name}}})
	l.applied()
	for _, cpu := range []int{cpus[0], cpus[1], cpus[0]} {
		generator, err := stateless.Open(l.ctx, stateless.Config{Traffic: l.generator(stateless.UDP, 100, port),
			Tx: stateless.Tx{Port: portOf(l.Clients[0]), CPUs: []int{cpu}, Queues: 2, OwnNetwork: true},
			Rx: stateless.Rx{Port: portOf(l.Backends[0])}})
		if err != nil {
			t.Fatal(err)
		}
		type outcome struct {
			r   *stateless.Result
			err error
		}
		done := make(chan outcome, 1)
		go func() {
			r, err := generator.Trial(l.ctx, stateless.Load{Duration: 3 * time.Second, Rate: rate})
			done <- outcome{r, err}
		}()
		l.within("workers are not where packets arrive, and spin", func() bool {
			s, err := l.gate.Client.Status(l.ctx, false)
			if err != nil {
				t.Fatal(err)
			}
			workers := 0
			for _, p := range s.Places {
				workers += len(p.Workers)
				if p.CPU == cpu || p.Arrive || !strings.Contains(p.Waiting, "no packets arrive here") {
					return false
				}
			}
			return workers == 2
		})
		o := <-done
		if o.err != nil {
			t.Fatal(o.err)
		}
		// A worker that nobody steps loses half of them; a machine that is busy loses some.
		if lost := o.r.Sent.Packets - o.r.Received.Packets; lost > o.r.Sent.Packets*2/5 {
			t.Errorf("packets from CPU %d: %d of %d lost", cpu, lost, o.r.Sent.Packets)
		}
		if err := generator.Close(); err != nil {
			t.Error(err)
		}
	}
	l.checkLaws()
}
