//go:build root

package e2e

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/size"
	"sluice.dev/sluice/test/bed/topo"
)

// moments are random times, of a seed that the test logs.
func moments(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// atOnce bounds the faults after which every connection must have had another answer. A client's
// kernel waits twice as long each time that it sends in vain (RFC 6298, section 5.5), so faults
// that never end keep it from sending at all.
const atOnce = 5 * time.Second

// established opens connections that live through faults.
func (l *lab) established(flows int, lifetime time.Duration) *topo.Flows {
	l.t.Helper()
	return l.establishedFor(flows, 2*time.Minute, lifetime) // many times longer than the faults at once
}

// establishedFor is established with connections that break if they have no answer for a timeout.
func (l *lab) establishedFor(flows int, timeout, lifetime time.Duration) *topo.Flows {
	l.t.Helper()
	f, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)},
		Flows: flows, Interval: 100 * time.Millisecond, Timeout: timeout, Lifetime: lifetime})
	if err != nil {
		l.t.Fatal(err)
	}
	if n := f.Broken(); n > 0 {
		l.t.Fatalf("%d of %d flows could not be opened", n, flows)
	}
	return f
}

// answeredAgain waits until every flow that lives has an answer more than it has now.
func (l *lab) answeredAgain(flows *topo.Flows) {
	l.t.Helper()
	if err := flows.AnsweredAgain(l.ctx, machine.Slower(time.Minute), 1); err != nil {
		l.t.Fatalf("every connection has another answer: %v\n%s", err, l.gate.Log())
	}
}

// TestKillAtRandom: the daemon dies at random moments under load, also while it starts, by kill -9
// and by SIGABRT. That one ends it as a panic does: by the Go runtime, without deferred calls. No
// established connection breaks, and no flow of the table was half written.
func TestKillAtRandom(t *testing.T) {
	const open = 500
	runs, random := size.Runs(t, 5, 1), moments(t)
	lifetime := time.Duration(runs)*6*time.Second + time.Minute
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, small: true, lasts: lifetime})
	flows := l.established(open, lifetime)
	answered := time.Now()
	changes := l.hammer(at(vip4, webPort), time.Millisecond) // flows that begin and end as it dies
	var took []time.Duration
	for run := range runs {
		time.Sleep(time.Duration(random.IntN(700)) * time.Millisecond)
		began := time.Now()
		l.dies(run%5 == 4)
		if run%3 == 2 { // and again, before it forwards
			if err := l.gate.Launch(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
			l.dies(false)
		}
		if err := l.gate.Start(l.ctx); err != nil {
			t.Fatalf("%v\n%s", err, l.gate.Log())
		}
		took = append(took, time.Since(began))
		if time.Since(answered) > atOnce {
			l.answeredAgain(flows)
			answered = time.Now()
		}
	}
	l.answeredAgain(flows)
	changes.stop(t) // attempts while nobody forwards fail, as they must
	slices.Sort(took)
	t.Logf("%d deaths: forwards again %v after one (median), at most %v", runs, took[runs/2].Round(time.Millisecond),
		took[runs-1].Round(time.Millisecond))
	for line := range strings.Lines(l.gate.Log()) {
		if strings.Contains(line, "flow table taken over") && !strings.Contains(line, "torn=0") {
			t.Errorf("flows were damaged: %s", line)
		}
	}
	if n := strings.Count(l.gate.Log(), "flow table taken over"); n == 0 {
		t.Error("no daemon took over a flow table")
	}
	l.wantUnbroken(flows, open, "the daemon has died at random moments")
}

// dies ends the daemon, by SIGABRT or by SIGKILL.
func (l *lab) dies(abort bool) {
	l.t.Helper()
	if abort {
		pid := l.gate.PID()
		if err := syscall.Kill(pid, syscall.SIGABRT); err != nil {
			l.t.Fatal(err)
		}
		l.within("the process has ended by SIGABRT", func() bool { return !l.gate.Running() })
		return
	}
	if err := l.gate.Kill(); err != nil {
		l.t.Fatal(err)
	}
}

// TestStopped: the whole process stands still for two seconds, as by SIGSTOP, a debugger or a
// hypervisor. No connection breaks, no flow expires for the time that it stood still.
func TestStopped(t *testing.T) {
	t.Parallel()
	const open, stands = 200, 2 * time.Second
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, small: true})
	flows := l.established(open, 2*time.Minute)
	l.within("every connection is established in the table", func() bool { return l.establishedFlows() == open })
	for range 3 {
		if err := syscall.Kill(l.gate.PID(), syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(stands) // the fault
		began := time.Now()
		if err := syscall.Kill(l.gate.PID(), syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		l.wantServed("after it stood still")
		caughtUp := time.Since(began)
		// A client's kernel sends again 1.6 s after the last time, at most.
		l.answeredAgain(flows)
		t.Logf("100 new connections are served %v after SIGCONT", caughtUp.Round(time.Millisecond))
		if n := l.establishedFlows(); n != open {
			t.Errorf("%d established flows in the table: want %d", n, open)
		}
	}
	l.wantUnbroken(flows, open, "three times stood still")
}

// establishedFlows counts the established connections in the flow table.
func (l *lab) establishedFlows() (n uint64) {
	l.t.Helper()
	stats, err := l.gate.Client.Stats(l.ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, f := range stats.Flows {
		n += f.States["ESTABLISHED"]
	}
	return n
}

// TestLinkFlaps: links of both sides go down and up at random, for 1 to 500 ms.
func TestLinkFlaps(t *testing.T) {
	t.Parallel()
	const open = 100
	runs, random := size.Runs(t, 10, 2), moments(t)
	lifetime := time.Duration(runs)*2*time.Second + time.Minute
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, small: true, lasts: lifetime})
	flows := l.established(open, lifetime)
	links := []string{"front0", "back0"}
	for _, name := range links { // Linux takes IPv6 addresses away from a link that goes down
		if err := l.Gateway.SetSysctl("net.ipv6.conf."+name+".keep_addr_on_down", "1"); err != nil {
			t.Fatal(err)
		}
	}
	answered := time.Now()
	var down time.Duration
	for range runs {
		name, span := links[random.IntN(2)], time.Duration(1+random.IntN(500))*time.Millisecond
		l.onLink(name, netlink.LinkSetDown)
		time.Sleep(span) // how long the link is down
		l.onLink(name, netlink.LinkSetUp)
		down += span
		time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
		if time.Since(answered) > atOnce {
			l.answeredAgain(flows)
			answered = time.Now()
		}
	}
	l.answeredAgain(flows)
	l.wantServed("after the flaps")
	t.Logf("%d flaps, %v down in all", runs, down)
	l.wantUnbroken(flows, open, "links flapped")
}
