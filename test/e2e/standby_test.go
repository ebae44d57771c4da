//go:build root

package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/topo"
)

// TestSecondProcessTakesOver: a second process reads and compiles, and waits for the first; when
// that one is killed or stopped, it forwards, and no established connection breaks.
func TestSecondProcessTakesOver(t *testing.T) {
	const open = 200
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, options: handsOver})
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort),
		at(vip6, webPort)}, Flows: open, Interval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	var starts []time.Duration
	for _, round := range []struct {
		name string
		end  func() error
	}{{"killed", l.gate.Kill}, {"killed again", l.gate.Kill}, {"handed over", l.gate.Stop}} {
		first := l.gate.PID()
		l.launchSecond(first)
		began := time.Now()
		if err := round.end(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.gate.Applied(l.ctx); err != nil {
			t.Fatalf("%v\n%s", err, l.gate.Log())
		}
		t.Logf("%s: the second process forwards %v after", round.name, time.Since(began).Round(time.Millisecond))
		if l.gate.PID() == first {
			t.Fatal("the first process is not gone")
		}
		starts = append(starts, l.startTime(time.Since(began)))
		l.answered(flows, 5)
	}
	l.wantStartWithin(time.Second, starts)
	l.wantUnbroken(flows, open, "three processes took over")
	l.handOverNoMore()
}

// launchSecond starts a second process and returns when it has compiled what the first one has.
func (l *lab) launchSecond(first int) {
	l.t.Helper()
	if err := l.gate.LaunchSecond(); err != nil {
		l.t.Fatal(err)
	}
	client := status.NewClient(l.gate.WaitingSocket())
	var v status.StatusView
	l.eventually(10*time.Second, "the second process has read the manifests", func() (is bool) {
		var err error
		v, err = client.Status(l.ctx, false)
		return err == nil && len(v.Sources) > 0 && v.Sources[0].Synced
	})
	why := strings.Join(v.NotReady, "; ")
	if v.Ready || !strings.Contains(why, fmt.Sprintf("process %d has", first)) || !strings.Contains(why, "since 20") {
		l.t.Errorf("ready %v: %q, want it to wait for %d", v.Ready, why, first)
	}
}

// TestSecondProcessEndsWhileItWaits: SIGTERM ends a process that waits, and the first one serves
// throughout.
func TestSecondProcessEndsWhileItWaits(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}})
	load := l.hammer(at(vip4, webPort), time.Millisecond)
	l.launchSecond(l.gate.PID())
	if err := l.gate.StopSecond(); err != nil {
		t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	if text, err := l.gate.Command(l.ctx, "status"); err != nil || !strings.Contains(text, "Ready:") {
		t.Errorf("the first one: %s, %v", text, err)
	}
	if r := load.stop(t); r.Failed() > 0 {
		t.Errorf("the first one's clients: %v", r.Errors)
	}
}
