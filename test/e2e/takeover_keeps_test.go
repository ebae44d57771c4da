//go:build root

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/host/hostlink"
	"sluice.dev/sluice/test/bed/topo"
)

// next starts a process that takes over, and returns when it has, and forwards.
func (l *lab) next() {
	l.t.Helper()
	if err := l.gate.LaunchNext(); err != nil {
		l.t.Fatal(err)
	}
	if err := l.gate.TakenOver(l.ctx); err != nil {
		l.t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	l.applied()
}

// logged waits until the gateway's processes have logged a text so many times.
func (l *lab) logged(text string, times int) {
	l.t.Helper()
	err := topo.Until(l.ctx, 20*time.Second, 100*time.Microsecond, func(context.Context) error {
		if strings.Count(l.gate.Log(), text) < times {
			return errors.New("it is not logged: " + text)
		}
		return nil
	})
	if err != nil {
		l.t.Fatalf("%v\n%s", err, l.gate.Log())
	}
}

// TestTakeOverKeepsHealth: an endpoint that is down by its check is down in the next process from
// its first moment on, also where it answers nobody's check there yet.
func TestTakeOverKeepsHealth(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, small: true, damaging: true,
		options: handsOver + "endpointHealth: {check: \"tcp interval=1s\"}\n"})
	out := l.Backends[1]
	silence(t, out, l.Gateway, 100)
	l.within("the silent endpoint gets no new flows", func() bool { return !l.backend("web", out).NewFlows })
	before := l.backend("web", out).Health
	l.next()
	b := l.backend("web", out)
	if b.NewFlows || b.Health == nil || !b.Health.Down || !b.Health.Since.Equal(before.Since) {
		t.Errorf("it is %s, want it down since %v", l.healthOf("web", out), before.Since)
	}
	for _, h := range []*topo.Host{l.Backends[0], l.Backends[2]} {
		if b := l.backend("web", h); b.Health == nil || b.Health.Down || b.Health.At.IsZero() {
			t.Errorf("%s is %s, want it known to be up", h.Name, l.healthOf("web", h))
		}
	}
	load := l.hammer(at(vip4, webPort), time.Millisecond)
	time.Sleep(time.Second) // less than its check takes to fail again
	if r := load.stop(t); r.Failed() > 0 {
		t.Errorf("new connections: %v", r.Errors)
	}
	hear(t, out)
	l.within("the endpoint gets new flows again", func() bool { return l.backend("web", out).NewFlows })
	l.handOverNoMore()
}

// TestTakeOverKeepsPulse: who announces hears without a pause that the gateway forwards, and never
// that it is lost, starts or ends.
func TestTakeOverKeepsPulse(t *testing.T) {
	t.Parallel()
	rounds := 3
	if full() {
		rounds = 20
	}
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, options: handsOver})
	var mu sync.Mutex
	var last pulse.Sight
	var wrong []string
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	go pulse.Follow(ctx, l.gate.PulseSocket(), func(s pulse.Sight) {
		mu.Lock()
		defer mu.Unlock()
		if last.State != nil && (s.Lost != "" || s.State.Phase != pulse.Serving || len(s.State.Failures) > 0) {
			wrong = append(wrong, fmt.Sprintf("%s: %q %+v", s.At.Format(time.StampMicro), s.Lost, s.State))
		}
		last = s
	}, nil)
	heard := func() {
		l.within("the process that forwards is heard", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return last.State != nil && last.State.PID == l.gate.PID() && len(last.State.VIPs) == 2
		})
	}
	heard()
	for range rounds {
		l.next()
		heard()
	}
	mu.Lock()
	defer mu.Unlock()
	for _, w := range wrong {
		t.Errorf("%s", w)
	}
	if len(wrong) > 0 {
		t.Log(l.gate.Log())
	}
	l.handOverNoMore()
}

// TestTakeOverAsksAgain: a next process that cannot reach the running one takes over when it can.
func TestTakeOverAsksAgain(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, small: true, options: handsOver})
	socket := filepath.Join(l.gate.StateDir(), "handover.sock")
	// It is made last, after the interfaces are open.
	l.eventually(10*time.Second, "the socket can be taken away", func() bool {
		return os.Rename(socket, socket+".away") == nil
	})
	if err := l.gate.LaunchNext(); err != nil {
		t.Fatal(err)
	}
	l.logged("the running process does not hand over", 1)
	if err := os.Rename(socket+".away", socket); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.TakenOver(l.ctx); err != nil {
		t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	l.applied()
	l.handOverNoMore()
}

// TestTakeOverOfStopped: the running process is stopped at some moment from when the next one is
// prepared on. If that one has all by then, it forwards alone, and the other one ends when it goes
// on; if not, that one goes on itself.
func TestTakeOverOfStopped(t *testing.T) {
	t.Parallel()
	stopped := 2 * time.Second
	if full() {
		stopped = time.Minute
	}
	for _, moment := range []string{"msg=confined", "msg=\"taken over"} {
		t.Run(moment, func(t *testing.T) {
			l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, small: true, options: handsOver})
			const open = 50
			flows := l.established(open, 5*time.Minute)
			first := l.gate.PID()
			times := strings.Count(l.gate.Log(), moment)
			if err := l.gate.LaunchNext(); err != nil {
				t.Fatal(err)
			}
			second := l.gate.SecondPID()
			l.logged(moment, times+1)
			err := syscall.Kill(first, syscall.SIGSTOP)
			if err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatal(err)
			}
			time.Sleep(stopped)
			taken := strings.Contains(l.gate.Log(), "msg=\"taken over")
			if taken {
				v, err := l.gate.Client.Status(l.ctx, true)
				if err != nil || v.PID != second || !v.Ready {
					t.Errorf("while the first process is stopped: process %d, ready %v (%v), %v\n%s", v.PID, v.Ready,
						v.NotReady, err, l.gate.Log())
				}
				l.wantServed("while the first process is stopped")
			}
			if err := syscall.Kill(first, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatal(err)
			}
			left, err := l.gate.OneLeft(l.ctx)
			if err != nil || taken && left != second {
				t.Fatalf("process %d forwards, %v; the next one %d had taken over: %v\n%s", left, err, second, taken,
					l.gate.Log())
			}
			l.applied()
			t.Logf("stopped after %q: taken over %v, the first process goes on %v", moment, taken, left == first)
			l.wantUnbroken(flows, open, "the running process was stopped in a hand-over")
			l.handOverNoMore()
		})
	}
}

// TestTakeOverLeavesHostLink: a next process that ends before it owns anything has changed nothing
// of the host link, nor of the routes to it; one that takes over sets both up, and does not narrow
// the link.
func TestTakeOverLeavesHostLink(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, small: true, options: handsOver})
	const wide, usual = 1700, 1500
	mtu := func() (is int) {
		l.onLink("sluice1", func(k netlink.Link) error { is = k.Attrs().MTU; return nil })
		return is
	}
	widen := func(to int) {
		l.onLink("front0", func(f netlink.Link) error { return netlink.LinkSetMTU(f, to) })
	}
	widen(wide)
	l.logged("msg=\"host link repaired", 1)
	widen(usual) // which the running process does not follow
	ended := false
	for attempt := 0; !ended && attempt < 10; attempt++ { // a fast one has taken over by then
		l.addOldRoute() // which the running process does not look for
		ended = l.nextEnds(func() {
			if is := mtu(); is != wide {
				t.Errorf("the MTU is %d after a next process that ended, want %d", is, wide)
			}
			if !l.hasOldRoute() {
				t.Error("a next process that ended has removed a route")
			}
		})
	}
	if !ended {
		t.Fatal("no next process ended before it had taken over")
	}
	l.next()
	if is := mtu(); is != wide {
		t.Errorf("the MTU is %d in the next process, want %d", is, wide)
	}
	l.within("the next process removes the route", func() bool { return !l.hasOldRoute() })
	l.wantServed("by the next process")
	l.handOverNoMore()
}

// nextEnds stops the running process while the next one prepares, so that this one ends, and then
// calls f; the running process goes on afterwards. It is false if the next one has taken over.
func (l *lab) nextEnds(f func()) bool {
	l.t.Helper()
	const confined, taken = "msg=confined", "msg=\"taken over"
	first, confinements, takeovers := l.gate.PID(), strings.Count(l.gate.Log(), confined),
		strings.Count(l.gate.Log(), taken)
	if err := l.gate.LaunchNext(); err != nil {
		l.t.Fatal(err)
	}
	second := l.gate.SecondPID()
	l.logged(confined, confinements+1) // it has found the host link before
	ended := false
	whileStopped(l.t, first, func() {
		gone := func() bool { return errors.Is(syscall.Kill(second, 0), syscall.ESRCH) }
		l.eventually(20*time.Second, "the next process ends or has taken over", func() bool {
			return gone() || strings.Count(l.gate.Log(), taken) > takeovers
		})
		if ended = gone(); ended {
			f()
		}
	})
	if left, err := l.gate.OneLeft(l.ctx); err != nil || ended && left != first {
		l.t.Fatalf("process %d forwards, %v\n%s", left, err, l.gate.Log())
	}
	l.applied()
	return ended
}

// whileStopped calls f while a process, which may have ended, is stopped.
func whileStopped(t *testing.T, pid int, f func()) {
	t.Helper()
	signal := func(s syscall.Signal) {
		if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Error(err)
		}
	}
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	f()
}

// addOldRoute adds a route as one for a source address that the configuration does not have any
// more.
func (l *lab) addOldRoute() {
	l.t.Helper()
	l.onLink("sluice1", func(k netlink.Link) error {
		return netlink.RouteReplace(
			&netlink.Route{LinkIndex: k.Attrs().Index, Dst: oldRoute(), Protocol: hostlink.Protocol})
	})
}

func (l *lab) hasOldRoute() (has bool) {
	l.t.Helper()
	l.onLink("sluice1", func(k netlink.Link) error {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4,
			&netlink.Route{LinkIndex: k.Attrs().Index, Dst: oldRoute()}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_DST)
		has = len(routes) > 0
		return err
	})
	return has
}

func oldRoute() *net.IPNet {
	return &net.IPNet{IP: net.IPv4(198, 51, 100, 7).To4(), Mask: net.CIDRMask(32, 32)}
}
