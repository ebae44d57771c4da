//go:build root

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/bench/launch"
	"sluice.dev/sluice/bench/stateless"
	"sluice.dev/sluice/bench/topo"
	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/status"
	"sluice.dev/sluice/internal/autogroup"
)

// TestWorkersFollowPackets: workers run where no packets arrive. A sender on one CPU makes its
// packets arrive there, as interrupts do; workers go to the others, and when the sender moves they
// do, too. Packets go on arriving meanwhile. The daemon goes before others of the machine then, and
// no more once packets arrive on its workers' CPUs, too.
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
	_, err = autogroup.Open()
	grouped := err == nil
	senders := [][]int{{cpus[0]}, {cpus[1]}, {cpus[0]}}
	if len(cpus) == 2 {
		senders = append(senders, cpus) // no CPU is left to workers alone
	}
	for _, sending := range senders {
		generator, err := stateless.Open(l.ctx, stateless.Config{Traffic: l.generator(stateless.UDP, 100, port),
			Tx: stateless.Tx{Port: portOf(l.Clients[0]), CPUs: sending, Queues: 2, OwnNetwork: true},
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
		alone := len(sending) == 1
		l.within("workers are not where packets arrive, and spin", func() bool {
			s, err := l.gate.Client.Status(l.ctx, false)
			if err != nil {
				t.Fatal(err)
			}
			workers := 0
			for _, p := range s.Places {
				workers += len(p.Workers)
				if alone && p.CPU == sending[0] || p.Arrive == alone ||
					strings.Contains(p.Waiting, "no packets arrive here") != alone {
					return false
				}
			}
			return workers == 2 && (!grouped || l.precedence(&s, alone))
		})
		o := <-done
		if o.err != nil {
			t.Fatal(o.err)
		}
		// A worker that nobody steps loses half of them; a machine that is busy loses some.
		if lost := o.r.Sent.Packets - o.r.Received.Packets; lost > o.r.Sent.Packets*2/5 {
			t.Errorf("packets from CPUs %v: %d of %d lost", sending, lost, o.r.Sent.Packets)
		}
		if err := generator.Close(); err != nil {
			t.Error(err)
		}
	}
	l.checkLaws()
}

// precedence reports whether the daemon goes before others, or does not, as the caller wants it:
// both by what it says and by what the kernel has.
func (l *lab) precedence(s *status.StatusView, first bool) bool {
	l.t.Helper()
	at := slices.IndexFunc(s.Conditions, func(c status.ConditionView) bool { return c.Name == "scheduling" })
	if at < 0 {
		l.t.Fatalf("status says nothing of scheduling: %v", s.Conditions)
	}
	group, err := os.ReadFile(fmt.Sprintf("/proc/%d/autogroup", s.PID))
	if err != nil {
		l.t.Fatal(err)
	}
	return strings.HasPrefix(s.Conditions[at].Detail, "before others") == first &&
		strings.HasSuffix(string(group), " nice -10\n") == first
}
