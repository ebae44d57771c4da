//go:build root

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/observer"
	"sluice.dev/sluice/test/bed/stateless"
	"sluice.dev/sluice/test/bed/topo"
)

// background is a load that runs while something happens.
type background struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	result *topo.Result
	err    error
}

// hammer opens new connections, one after another, until stop.
func (l *lab) hammer(target netip.AddrPort, interval time.Duration) *background {
	ctx, cancel := context.WithCancel(l.ctx)
	b := &background{cancel: cancel}
	b.done.Add(1)
	go func() {
		defer b.done.Done()
		b.result, b.err = l.Clients[0].HTTP(ctx, topo.HTTPLoad{Targets: []netip.AddrPort{target}, Requests: 1_000_000,
			Concurrency: 2, Interval: interval})
	}()
	return b
}

func (b *background) stop(t *testing.T) *topo.Result {
	t.Helper()
	b.cancel()
	b.done.Wait()
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.result
}

// TestKill: kill -9 under load. Established flows survive, the node's own traffic
// does not notice, and a new daemon forwards within a second.
func TestKill(t *testing.T) {
	l := newLab(t, labConfig{Config: topo.Config{Backends: 4, Queues: 2}})
	own, err := l.Gateway.ServeOn("node", 9000, l.Gateway.Addr4())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { own.Close() })
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort),
		at(vip6, webPort)}, Flows: 1000, Interval: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	node := l.hammer(netip.AddrPortFrom(l.Gateway.Addr4(), 9000), 5*time.Millisecond)
	if n := flows.Broken(); n > 0 {
		t.Fatalf("%d of 1000 flows could not be opened", n)
	}
	var starts []time.Duration
	for round := range 3 {
		if err := l.gate.Kill(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := l.gate.Start(l.ctx); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		t.Logf("round %d: forwards again %v after the start of the new daemon", round, took.Round(time.Millisecond))
		starts = append(starts, l.startTime(took))
		l.answered(flows, 5)
	}
	l.wantStartWithin(time.Second, starts)
	broken := flows.Broken()
	r, n := flows.Stop(), node.stop(t)
	t.Logf("1000 established flows: %d broken, %d answers; the node's own traffic: %d requests, %d errors", broken,
		r.Requests, n.Requests, n.Failed())
	if broken > 0 || r.Failed() > 0 {
		t.Errorf("flows broken: %v", r.Errors)
	}
	if n.Failed() > 0 {
		t.Errorf("the node's own traffic: %v", n.Errors)
	}
}

// startTime converts how long the daemon took to start on this machine to how long it would take on
// an idle one: the share of that duration in which the daemon's threads ran, of the time in which
// they were ready to. The test's own load makes them wait about as long as they run even if nothing
// else uses the machine, so the share counts twice. A start of less than a second counts as it is.
func (l *lab) startTime(took time.Duration) time.Duration {
	l.t.Helper()
	if took <= time.Second {
		return took
	}
	u, err := observer.ProcessUsage(l.gate.PID())
	if err != nil && !errors.Is(err, observer.ErrOneProcessor) {
		l.t.Fatalf("the new daemon took %v to forward; its processor time: %v", took, err)
	}
	idle := 2 * time.Duration(float64(took)*float64(u.Own)/float64(u.Own+u.Waited))
	l.t.Logf("its threads ran for %v and waited %v for a processor: %v on an idle machine", u.Own, u.Waited,
		idle.Round(time.Millisecond))
	return min(took, idle)
}

// wantStartWithin checks the quickest of several starts: other processes can only delay one.
func (l *lab) wantStartWithin(limit time.Duration, starts []time.Duration) {
	l.t.Helper()
	if quickest := slices.Min(starts); quickest > limit {
		l.t.Errorf("the daemon took %v to start, at best: want %v", quickest, limit)
	}
}

// TestHeartbeat: what a frontend does while nobody is there. First silence, so that
// live flows are not reset; when the heartbeat is old, the kernel decides.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, options: "tuning: {passAfter: 3s}\n"})
	target := netip.AddrPortFrom(l.Gateway.Addr4(), webNodePort)
	ask := func(timeout time.Duration) string {
		r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{target}, Requests: 1,
			Timeout: timeout})
		if err != nil {
			t.Fatal(err)
		}
		if r.Failed() == 0 {
			return "served"
		}
		for kind := range r.Errors {
			if strings.Contains(kind, "refused") {
				return "refused"
			}
		}
		return "silence"
	}
	want := func(when, what string, timeout time.Duration) {
		t.Helper()
		got := ask(timeout)
		t.Logf("%s: %s", when, got)
		if got != what {
			t.Errorf("%s: %s, want %s", when, got, what)
		}
	}
	want("before", "served", time.Second)
	if err := l.gate.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	want("killed, heartbeat young", "silence", time.Second)
	time.Sleep(time.Until(killed.Add(4500 * time.Millisecond))) // the heartbeat is older than passAfter by then
	want("killed, heartbeat old", "refused", time.Second)
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatal(err)
	}
	want("restarted", "served", time.Second)
}

// TestChurn: endpoints come and go under load. No flow breaks, and once a change is
// applied nobody new reaches an endpoint that is gone.
func TestChurn(t *testing.T) {
	updates := 50
	if full() {
		updates = 500
	}
	l := newLab(t, labConfig{Config: topo.Config{Backends: 8, Queues: 2}})
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort),
		at(vip6, webPort)}, Flows: 1000, Interval: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var requests, wrong, failed int64
	for i := range updates {
		// Every backend is out one time in eight; two are out at a time.
		in := map[string]bool{}
		var hosts []*topo.Host
		for k, h := range l.Backends {
			if k != i%8 && k != (i*3+1)%8 {
				hosts = append(hosts, h)
				in[h.Name] = true
			}
		}
		l.apply(l.web(hosts...))
		l.applied()
		r, err := l.Clients[0].HTTP(l.ctx,
			topo.HTTPLoad{Targets: []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)}, Requests: 8, Concurrency: 2})
		if err != nil {
			t.Fatal(err)
		}
		requests += r.Requests
		failed += r.Failed()
		for name, n := range r.Shares {
			if !in[name] {
				wrong += n
			}
		}
	}
	took := time.Since(began)
	broken := flows.Broken()
	r := flows.Stop()
	t.Logf("%d updates in %v; 1000 long flows: %d broken, %d answers; %d new connections: %d errors, %d to removed "+
		"endpoints",
		updates, took.Round(time.Millisecond), broken, r.Requests, requests, failed, wrong)
	if broken > 0 || r.Failed() > 0 || failed > 0 || wrong > 0 {
		t.Errorf("flows: %v", r.Errors)
	}
}

// TestServiceDeletedUnderFlows: established TCP outlives its Service.
func TestServiceDeletedUnderFlows(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}})
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort),
		at(vip6, webPort)}, Flows: 50, Interval: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.gate.Remove("web"); err != nil {
		t.Fatal(err)
	}
	l.applied()
	l.answered(flows, 20) // none breaks with its Service
	flows.Stop()
}

// TestDirectServiceDeletedUnderFlows: TCP with direct return ends with its Service, by an RST.
func TestDirectServiceDeletedUnderFlows(t *testing.T) {
	t.Parallel()
	const n = 50
	l, _ := directLab(t, false, "")
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(keepVIP4, directPort),
		at(keepVIP6, directPort)}, Flows: n, Interval: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.gate.Remove("direct"); err != nil {
		t.Fatal(err)
	}
	l.applied()
	l.within("all connections end", func() bool { return flows.Broken() == n })
	for _, s := range flows.States() {
		if !errors.Is(s.Broken, syscall.ECONNRESET) {
			t.Errorf("a connection ended by %v", s.Broken)
		}
	}
	flows.Stop()
}

// TestUDPLeavesUnservingEndpointAtOnce: datagrams never go to an endpoint that does not serve.
func TestUDPLeavesUnservingEndpointAtOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}})
	flows, err := l.Clients[0].OpenUDP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, dnsPort),
		at(vip6, dnsPort)}, Flows: 100, Interval: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 4 {
		stay := l.Backends[round%2]
		l.apply(l.dns(stay))
		l.applied()
		if err := flows.AnsweredAgain(l.ctx, machine.Slower(5*time.Second), 12); err != nil {
			t.Fatal(err)
		}
		if by := flows.ByBackend(); by[stay.Name] != 100 {
			t.Errorf("only %s serves, but the last answers came from %v", stay.Name, by)
		}
	}
	if r := flows.Stop(); r.Failed() > 2 { // a datagram may be under way to the endpoint as it goes
		t.Errorf("lost: %v", r.Errors)
	}
}

// TestOutOfDescriptors: a daemon that can open no file goes on with what it has: no port closes, no
// flow ends, new ones begin. It reports what it could not read, and notices later what changed.
func TestOutOfDescriptors(t *testing.T) {
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}})
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort),
		at(vip6, webPort)}, Flows: 50, Interval: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	restore := machine.LimitDescriptors(t, l.gate.PID(), 0)
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); { // three readings of everything
		l.wantServed("without descriptors")
	}
	restore()
	l.within("the status answers again", func() bool {
		_, err := l.gate.Client.Status(l.ctx, false)
		return err == nil
	})
	l.answered(flows, 20)
	flows.Stop()
	log, err := os.ReadFile(l.gate.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	if log := string(log); strings.Contains(log, "interface lost") || strings.Contains(log, "repaired") {
		t.Error("a port or the host link was opened again")
	}
}

func (l *lab) wantServed(when string) {
	l.t.Helper()
	r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)},
		Requests: 100, Concurrency: 4, Timeout: 30 * time.Second}) // a busy machine loses SYNs
	if err != nil {
		l.t.Fatal(err)
	}
	if r.Failed() > 0 {
		l.t.Errorf("%s: %v", when, r.Errors)
	}
}

// TestIdle: what a gateway costs that forwards nothing, and one that forwards 1,000 packets a
// second, in both ways of waiting.
func TestIdle(t *testing.T) {
	const flows, port, rate = 1 << 20, 9000, 1000
	// Nearly all of it is for wake-ups: the bounds allow for machines where they cost more. A
	// gateway that polls instead of waiting uses a whole core.
	wakeUp := machine.WakeUpCost()
	span, idle, shared := 3*time.Second, max(0.04, 2000*wakeUp.Seconds()), max(0.12, 8*rate*wakeUp.Seconds())
	if full() {
		span, idle, shared = 20*time.Second, max(0.01, 1500*wakeUp.Seconds()), max(0.05, 5*rate*wakeUp.Seconds())
	}
	t.Logf("a wake-up costs %v here; bounds of a core: idle %.3f, shared at %d packets a second %.3f",
		wakeUp, idle, rate, shared)
	for _, x := range []struct {
		waiting config.Waiting
		busy    float64 // the most at that rate, of a core
	}{{config.WaitingDedicated, 1}, {config.WaitingShared, shared}} {
		t.Run(string(x.waiting), func(t *testing.T) {
			l := newLab(t, labConfig{Config: topo.Config{Backends: 1, Queues: 2}, quick: true,
				options: fmt.Sprintf("flows: {ipv4: %d, ipv6: %d}\nwaiting: %s\n", flows, flows/4, x.waiting)})
			l.apply(launch.Service{Name: "one-way", UDP: true, Port: port, VIPs: []string{keepVIP4},
				Endpoints: []launch.Endpoint{{Addr: l.Backends[0].Addr4(), Port: port, Node: l.Backends[0].Name}}})
			l.applied()
			used := func() time.Duration { return cpuTime(t, l.gate.PID()) }
			check := func(doing string, began time.Time, before time.Duration, most float64) {
				share := float64(used()-before) / float64(time.Since(began))
				t.Logf("%s for %v: %.2f %% of one core in all, 2 queues", doing, span, 100*share)
				if share > most {
					t.Errorf("a gateway used %.2f %% of a core while %s", 100*share, doing)
				}
			}
			began, before := time.Now(), used()
			time.Sleep(span) // the time that is measured
			check("idle", began, before, idle)
			generator, err := stateless.Open(l.ctx, stateless.Config{
				Traffic: l.generator(stateless.UDP, 100, port),
				Tx:      stateless.Tx{Port: portOf(l.Clients[0]), CPUs: []int{0}, Queues: 2, OwnNetwork: true},
				Rx:      stateless.Rx{Port: portOf(l.Backends[0])}})
			if err != nil {
				t.Fatal(err)
			}
			defer generator.Close()
			// Workers move once they have seen where packets arrive.
			if _, err := generator.Trial(l.ctx, stateless.Load{Duration: 2 * time.Second, Rate: rate}); err != nil {
				t.Fatal(err)
			}
			began, before = time.Now(), used()
			r, err := generator.Trial(l.ctx, stateless.Load{Duration: span, Rate: rate})
			if err != nil {
				t.Fatal(err)
			}
			check(fmt.Sprintf("forwarding %d packets a second", rate), began, before, x.busy)
			if r.Received.Packets < r.Sent.Packets/2 {
				t.Errorf("%d of %d packets arrived", r.Received.Packets, r.Sent.Packets)
			}
			for _, line := range strings.Split(procFile(t, l.gate.PID(), "status"), "\n") {
				if strings.HasPrefix(line, "VmRSS") || strings.HasPrefix(line, "Rss") {
					t.Log(line)
				}
			}
		})
	}
}

func procFile(t *testing.T, pid int, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// cpuTime returns how long the threads of a process have run. Times in stat are of ticks, and miss
// shorter ones.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	turns := machine.TurnsOf(pid)
	if turns.Ran == 0 {
		t.Fatalf("no threads of process %d", pid)
	}
	return turns.Ran
}
