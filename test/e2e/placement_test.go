//go:build root

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/host/autogroup"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/stateless"
	"sluice.dev/sluice/test/bed/topo"
)

// TestWorkersFollowPackets: workers run where no packets arrive. A sender on one CPU makes its
// packets arrive there, as interrupts do; workers go to the others, and when the sender moves they
// do, too. Packets go on arriving meanwhile. The daemon's session goes before others of the machine
// then, and no more once packets arrive on its workers' CPUs, too.
func TestWorkersFollowPackets(t *testing.T) {
	cpus := twoCPUs(t)
	l := newPlacementLab(t, "")
	_, err := autogroup.Open()
	grouped := err == nil
	senders := [][]int{{cpus[0]}, {cpus[1]}, {cpus[0]}}
	if len(cpus) == 2 {
		senders = append(senders, cpus) // no CPU is left to workers alone
	}
	for _, sending := range senders {
		alone := len(sending) == 1
		const expected = "workers are not where packets arrive"
		l.whileSending(sending, 20_000, 3*time.Second, expected, func(s *status.StatusView) bool {
			workers := 0
			for _, p := range s.Places {
				workers += len(p.Workers)
				if alone && p.CPU == sending[0] || p.Arrive == alone ||
					strings.Contains(p.Waiting, "no packets arrive here") != alone {
					return false
				}
			}
			return workers == 2 && (!grouped || l.precedence(s, alone))
		})
	}
	l.checkLaws()
}

// TestSharedWorkersAreRealTime: workers that sleep between packets are real-time threads while
// there are some, and no more afterwards.
func TestSharedWorkersAreRealTime(t *testing.T) {
	cpus := twoCPUs(t)
	l := newPlacementLab(t, "waiting: shared\n")
	realTime := func(want bool) func(*status.StatusView) bool {
		return func(s *status.StatusView) bool {
			said := strings.Contains(l.scheduling(s), "raised priority, as real-time threads")
			return said == want && l.realTimeThreads(s.PID) > 0 == want
		}
	}
	said := ""
	l.whileSending(cpus[:1], 20_000, 4*time.Second, "workers are real-time threads", func(s *status.StatusView) bool {
		said = l.scheduling(s)
		return realTime(true)(s) || strings.Contains(said, realTimeRefused)
	})
	skipRefused(t, said)
	// A last look with few packets is repeated for five seconds.
	l.eventually(10*time.Second, "they are none without packets", func() bool {
		s, err := l.gate.Client.Status(l.ctx, false)
		if err != nil {
			t.Fatal(err)
		}
		return realTime(false)(&s)
	})
	l.checkLaws()
}

// TestBesideManyPackets: workers on whose CPUs packets arrive go before what receives them, also
// where these are more than can be forwarded.
func TestBesideManyPackets(t *testing.T) {
	cpus := twoCPUs(t)[:2]
	l := newPlacementLab(t, fmt.Sprintf("workerCPUs: [%d, %d]\n", cpus[0], cpus[1]))
	said, since := "", time.Now()
	l.whileSending(cpus, 2_000_000, 6*time.Second, "workers are real-time threads", func(s *status.StatusView) bool {
		said = l.scheduling(s)
		if !strings.Contains(said, "as real-time threads") {
			since = time.Now()
		}
		return time.Since(since) > 2*time.Second || strings.Contains(said, realTimeRefused)
	})
	skipRefused(t, said)
	l.checkLaws()
}

const (
	placementPort = 9000
	// realTimeRefused is in what the daemon says where its workers cannot be real-time threads.
	realTimeRefused = "no real-time threads"
)

// skipRefused skips the test if its workers cannot be real-time threads, by what the daemon said.
func skipRefused(t *testing.T, said string) {
	t.Helper()
	if strings.Contains(said, realTimeRefused) {
		t.Skip("this kernel has CONFIG_RT_GROUP_SCHED, and this cgroup no real-time bandwidth, or a limit:", said)
	}
}

// twoCPUs returns the CPUs that this process may use, and skips the test if there is only one.
func twoCPUs(t *testing.T) []int {
	t.Helper()
	cpus, err := config.CPUs()
	if err != nil {
		t.Fatal(err)
	}
	if len(cpus) < 2 {
		t.Skip("this process may use one CPU only")
	}
	return cpus
}

// newPlacementLab has a gateway of two workers, and a Service of one endpoint.
func newPlacementLab(t *testing.T, options string) *lab {
	t.Helper()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 1, Queues: 2}, quick: true, options: options})
	l.apply(launch.Service{Name: "one-way", UDP: true, Port: placementPort, VIPs: []string{keepVIP4},
		Endpoints: []launch.Endpoint{{Addr: l.Backends[0].Addr4(), Port: placementPort, Node: l.Backends[0].Name}}})
	l.applied()
	return l
}

// whileSending sends packets from CPUs for a time, so that they arrive there, waits until the
// status is as expected, and checks that they arrive at the endpoint.
func (l *lab) whileSending(from []int, rate float64, lasts time.Duration, expected string,
	is func(*status.StatusView) bool) {
	l.t.Helper()
	generator, err := stateless.Open(l.ctx, stateless.Config{Traffic: l.generator(stateless.UDP, 100, placementPort),
		Tx: stateless.Tx{Port: portOf(l.Clients[0]), CPUs: from, Queues: 2, OwnNetwork: true},
		Rx: stateless.Rx{Port: portOf(l.Backends[0])}})
	if err != nil {
		l.t.Fatal(err)
	}
	type outcome struct {
		r   *stateless.Result
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		r, err := generator.Trial(l.ctx, stateless.Load{Duration: lasts, Rate: rate})
		done <- outcome{r, err}
	}()
	l.within(expected, func() bool {
		s, err := l.gate.Client.Status(l.ctx, false)
		if err != nil {
			l.t.Fatal(err)
		}
		return is(&s)
	})
	o := <-done
	if o.err != nil {
		l.t.Fatal(o.err)
	}
	// A worker that nobody steps loses half of them; a machine that is busy loses some.
	if lost := o.r.Sent.Packets - o.r.Received.Packets; lost > o.r.Sent.Packets*2/5 {
		l.t.Errorf("packets from CPUs %v: %d of %d lost", from, lost, o.r.Sent.Packets)
	}
	if err := generator.Close(); err != nil {
		l.t.Error(err)
	}
}

// scheduling is what the daemon says of whether it goes before others.
func (l *lab) scheduling(s *status.StatusView) string {
	l.t.Helper()
	c := conditionOf(s, "scheduling")
	if c.Name == "" {
		l.t.Fatalf("status says nothing of scheduling: %v", s.Conditions)
	}
	return c.Detail
}

// realTimeThreads counts the threads of a process that have the policy SCHED_RR.
func (l *lab) realTimeThreads(process int) (n int) {
	l.t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", process))
	if err != nil {
		l.t.Fatal(err)
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			l.t.Fatal(err)
		}
		if a, err := unix.SchedGetAttr(tid, 0); err == nil && a.Policy == unix.SCHED_RR { // else it ended
			n++
		}
	}
	return n
}

// precedence reports whether the daemon goes before others as it does with workers on CPUs of their
// own, or without, both by what it says and by what the kernel has.
func (l *lab) precedence(s *status.StatusView, apart bool) bool {
	l.t.Helper()
	group, err := os.ReadFile(fmt.Sprintf("/proc/%d/autogroup", s.PID))
	if err != nil {
		l.t.Fatal(err)
	}
	session := strings.HasSuffix(string(group), " nice -20\n")
	said, realTime := strings.HasPrefix(l.scheduling(s), "raised priority"), l.realTimeThreads(s.PID) > 0
	if apart {
		return said && (session || realTime)
	}
	return !session && said == realTime
}
