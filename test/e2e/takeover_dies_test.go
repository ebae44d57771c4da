//go:build root

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

// TestTakeOverDies: either process is killed at a random moment of a hand-over, or the running one
// is asked to stop. No connection breaks, and one of the two forwards, or the next start does as
// after a crash.
func TestTakeOverDies(t *testing.T) {
	const open = 200
	runs, random := 6, moments(t)
	if full() {
		runs = 50
	}
	lifetime := time.Duration(runs)*10*time.Second + time.Minute
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, options: handsOver, lasts: lifetime})
	flows := l.established(open, lifetime)
	ends := map[string]int{}
	for run := range runs {
		first := l.gate.PID()
		if err := l.gate.LaunchNext(); err != nil {
			t.Fatal(err)
		}
		second := l.gate.SecondPID()
		time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond) // about what a hand-over takes
		killed, victim, signal := "the next one was killed", second, syscall.SIGKILL
		switch run % 3 {
		case 0:
			killed, victim = "the running one was killed", first
		case 1: // SIGTERM must stop nothing that it has given
			killed, victim, signal = "the running one was stopped", first, syscall.SIGTERM
		}
		if err := syscall.Kill(victim, signal); errors.Is(err, syscall.ESRCH) {
			killed += " too late" // it had ended, as all was given
		} else if err != nil {
			t.Fatal(err)
		}
		left, err := l.gate.OneLeft(l.ctx)
		if err != nil {
			t.Fatalf("run %d, %s: %v\n%s", run, killed, err, l.gate.Log())
		}
		end := map[int]string{first: "the running one continues", second: "the next one goes on"}[left]
		if end == "" {
			end = "both ended, and a third one starts"
		}
		ends[killed+": "+end]++
		if _, err := l.gate.Applied(l.ctx); err != nil {
			t.Fatalf("run %d, %s, %s: %v\n%s", run, killed, end, err, l.gate.Log())
		}
		// Two of three runs restart the gateway. Where one follows the other at once, on a machine
		// that takes a second for it, TCP's retransmissions, ever more seldom, meet one restart or
		// another until the client gives up.
		l.answeredAgain(flows)
	}
	t.Logf("%d hand-overs: %v", runs, ends)
	l.wantUnbroken(flows, open, "processes died in hand-overs")
	l.handOverNoMore()
}

// TestTakeOverStopped: the next process is stopped in the middle, which the running one does not
// wait for: packets go on. If it wakes too late it has nothing, and ends.
func TestTakeOverStopped(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, options: handsOver})
	load := l.number(l.Clients[0], l.Clients[0].Addr4(), at(vip4, dnsPort))
	first := l.gate.PID()
	if err := l.gate.LaunchNext(); err != nil {
		t.Fatal(err)
	}
	// The line is written when everything is prepared, some milliseconds before the workers stop.
	err := topo.Until(l.ctx, 20*time.Second, 100*time.Microsecond, func(context.Context) error {
		if strings.Count(l.gate.Log(), "msg=confined") < 2 {
			return errors.New("nothing is prepared yet")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	second := l.gate.SecondPID()
	if err := syscall.Kill(second, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	late := false // on a busy machine the signal may come when the next process has everything
	answers := func(n int) func(context.Context) error {
		want := load.Answered() + uint64(n)
		return func(context.Context) error {
			late = late || strings.Contains(l.gate.Log(), "handed over to the next process")
			if got := load.Answered(); got < want {
				return fmt.Errorf("%d datagrams answered, want %d", got, want)
			}
			return nil
		}
	}
	// At most until the running process does not wait for ready or taken any more.
	if err := topo.Until(l.ctx, 20*time.Second, 10*time.Millisecond, answers(5000)); err != nil && !late {
		t.Errorf("while the next process is stopped: %v\n%s", err, l.gate.Log())
	}
	stopped := !late
	if full() && stopped {
		time.Sleep(12 * time.Second) // longer than any wait of the running one
	}
	if err := syscall.Kill(second, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	left, err := l.gate.OneLeft(l.ctx)
	if err != nil {
		t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	if _, err := l.gate.Applied(l.ctx); err != nil {
		t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	if full() && stopped && left != first {
		t.Errorf("process %d forwards, want %d", left, first)
	}
	if err := topo.Until(l.ctx, 20*time.Second, 10*time.Millisecond, answers(1000)); err != nil {
		t.Errorf("afterwards: %v\n%s", err, l.gate.Log())
	}
	sent, lost, repeated, err := load.Finish()
	if lost > 0 || repeated > 0 || err != nil {
		t.Errorf("%d of %d datagrams lost, %d repeated, %v\n%s", lost, sent, repeated, err, l.gate.Log())
	}
	l.handOverNoMore()
}

// TestTakeOverEndsAtOnce: a next process that is ended when it has just taken over, before it has
// opened anything, leaves the node as clean as any other without drain.handOver.
func TestTakeOverEndsAtOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, small: true})
	if err := l.gate.LaunchNext(); err != nil {
		t.Fatal(err)
	}
	pid := l.gate.SecondPID()
	l.logged("msg=\"taken over", 1)
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.TakenOver(l.ctx); err != nil {
		t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	l.eventually(20*time.Second, "the next process ends", func() bool { return !l.gate.Running() })
	if left, err := l.gate.Leftovers(); err != nil || len(left) > 0 {
		t.Errorf("left on the node: %q, %v\n%s", left, err, l.gate.Log())
	}
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatal(err)
	}
}
