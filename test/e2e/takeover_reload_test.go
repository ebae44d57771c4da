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
	"testing"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// reload runs the command of the systemd unit's ExecReload, with a socket in place of systemd's.
func (l *lab) reload() (notified string, err error) {
	l.t.Helper()
	path := filepath.Join(l.t.TempDir(), "notify")
	manager, err := net.ListenPacket("unixgram", path)
	if err != nil {
		l.t.Fatal(err)
	}
	defer manager.Close()
	log, err := os.OpenFile(l.gate.LogFile(), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	defer log.Close()
	p, err := l.Gateway.Start(topo.Command{Path: daemonBinary, Stdout: log, Stderr: log,
		Args: []string{"run", "--config", l.gate.ConfigFile(), "--take-over", "--background"},
		Env:  []string{"NOTIFY_SOCKET=" + path}})
	if err != nil {
		l.t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		l.t.Fatalf("the reload does not end\n%s", l.gate.Log())
	}
	if err := p.Err(); err != nil {
		return "", err
	}
	if err := manager.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		l.t.Fatal(err)
	}
	var b [1024]byte
	n, _, err := manager.ReadFrom(b[:])
	return string(b[:n]), err
}

// TestTakeOverReload: what `systemctl reload` runs replaces the process without a packet lost, and
// names the next one. Where that cannot take over, the running one goes on, and the command says
// why.
func TestTakeOverReload(t *testing.T) {
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, options: handsOver})
	load := l.number(l.Clients[0], l.Clients[0].Addr4(), at(vip4, dnsPort))
	first := l.gate.PID()
	said, err := l.reload()
	if err != nil {
		t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	v, err := l.gate.Applied(l.ctx)
	if err != nil {
		t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	if v.PID == first || !strings.HasPrefix(said, fmt.Sprintf("MAINPID=%d\n", v.PID)) {
		t.Errorf("the service manager was told %q; process %d forwards, before %d", said, v.PID, first)
	}
	if err := l.gate.WriteConfiguration(l.gate.Configuration() + "flows: {ipv4: 4096, ipv6: 4096}\n"); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.LaunchSecond(); err != nil { // which stands by
		t.Fatal(err)
	}
	l.eventually(10*time.Second, "it waits", func() bool {
		pid, err := status.PeerPID(l.gate.WaitingSocket())
		return err == nil && pid == l.gate.SecondPID()
	})
	if said, err := l.reload(); err == nil {
		t.Errorf("a reload with another size of the flow table: %q", said)
	}
	if err := l.gate.StopSecond(); err != nil {
		t.Fatal(err)
	}
	if log := l.gate.Log(); !strings.Contains(log,
		"the running process does not hand over, and continues: flow table") {
		t.Errorf("the log does not say why:\n%s", log)
	}
	if err := l.gate.WriteConfiguration(l.gate.Configuration() + "metrics: {tokenFile: /none}\n"); err != nil {
		t.Fatal(err)
	}
	if said, err := l.reload(); err == nil {
		t.Errorf("a reload of a process that cannot start: %q", said)
	}
	log := l.gate.Log()
	if !strings.Contains(log, "the next process cannot take over, and the running one continues: ") ||
		strings.Count(log, "the running process does not hand over, and continues: ") != 1 {
		t.Errorf("the log has the wrong reason:\n%s", log)
	}
	if again, err := l.gate.Client.Status(l.ctx, false); err != nil || again.PID != v.PID {
		t.Errorf("process %d forwards, %v; want %d", again.PID, err, v.PID)
	}
	// The next one is a process of this test's again, which ends it.
	if err := l.gate.WriteConfiguration(l.gate.Configuration()); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.LaunchNext(); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.TakenOver(l.ctx); err != nil {
		t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	l.awaitPID(l.gate.PID())
	l.applied() // what ends before its interfaces are open leaves all to a next process
	sent, lost, repeated, err := load.Finish()
	if lost > 0 || repeated > 0 || err != nil {
		t.Errorf("%d of %d datagrams lost, %d repeated, %v", lost, sent, repeated, err)
	}
	l.handOverNoMore()
}

// awaitPID waits until a process forwards.
func (l *lab) awaitPID(pid int) {
	l.t.Helper()
	err := topo.Until(l.ctx, 20*time.Second, 10*time.Millisecond, func(ctx context.Context) error {
		v, err := l.gate.Client.Status(ctx, false)
		if err == nil && v.PID != pid {
			err = fmt.Errorf("process %d forwards, want %d", v.PID, pid)
		}
		return err
	})
	if err != nil {
		l.t.Fatalf("%v\n%s", err, l.gate.Log())
	}
}

// TestTakeOverByPod: the container of a pod that has handed over, which is started again until the
// pod is deleted, takes nothing back, also where another pod has taken over since.
func TestTakeOverByPod(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, options: handsOver})
	l.nextPod("pod-a")
	l.nextPod("pod-b")
	times := 2
	if full() {
		times = 5
	}
	l.refusesPod("pod-a", times)
	l.handOverNoMore()
}

// TestTakeOverByPodDies: which pods get nothing back outlives the processes: one that dies before
// it hands over is followed by the one that waits, and one that dies afterwards by itself. A pod
// that was followed, and then is the first to start, hands over to its follower again.
func TestTakeOverByPodDies(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, options: handsOver})
	l.nextPod("pod-a")
	l.nextPod("pod-b")
	for _, step := range []func() error{l.gate.Kill, func() error { return l.gate.LaunchOf("pod-b") }} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	l.applied()
	l.refusesPod("pod-a", 1)

	socket := filepath.Join(l.gate.StateDir(), "handover.sock")
	l.eventually(10*time.Second, "the socket can be taken away, so that pod-c waits", func() bool {
		return os.Remove(socket) == nil
	})
	if err := l.gate.LaunchNextOf("pod-c"); err != nil {
		t.Fatal(err)
	}
	l.awaitRefused(1, "it has no socket for hand-overs")
	if err := l.gate.Kill(); err != nil {
		t.Fatal(err)
	}
	l.applied()
	l.awaitPID(l.gate.PID())
	l.refusesPod("pod-b", 1)
	l.refusesPod("pod-a", 1)

	if err := l.gate.LaunchNextOf("pod-b"); err != nil {
		t.Fatal(err)
	}
	l.awaitRefused(1, "the pod that asks")
	if err := l.gate.Kill(); err != nil {
		t.Fatal(err)
	}
	l.applied()
	l.nextPod("pod-c")
	l.handOverNoMore()
}

// nextPod starts a process of a pod, which takes over.
func (l *lab) nextPod(pod string) {
	l.t.Helper()
	if err := l.gate.LaunchNextOf(pod); err != nil {
		l.t.Fatal(err)
	}
	if err := l.gate.TakenOver(l.ctx); err != nil {
		l.t.Fatalf("%s: %v\n%s", pod, err, l.gate.Log())
	}
	if _, err := l.gate.Applied(l.ctx); err != nil {
		l.t.Fatalf("%s: %v\n%s", pod, err, l.gate.Log())
	}
}

// refusesPod starts a process of a pod, which must be refused some times, and ends it. After five
// refusals it is ready: a rolling update that is taken back waits for that, and then ends the pod
// that forwards.
func (l *lab) refusesPod(pod string, times int) {
	l.t.Helper()
	if err := l.gate.LaunchNextOf(pod); err != nil {
		l.t.Fatal(err)
	}
	v := l.awaitRefused(times, "the pod that asks, which is being deleted")
	if v.Ready != (times >= 5) {
		l.t.Errorf("%s is ready %v after %d refusals: %q", pod, v.Ready, v.TakeOver.Asked, v.NotReady)
	}
	l.awaitPID(l.gate.PID())
	if err := l.gate.StopSecond(); err != nil {
		l.t.Fatal(err)
	}
}

// awaitRefused waits until the process that waits has asked in vain some times, the last time for a
// reason.
func (l *lab) awaitRefused(times int, why string) (v status.StatusView) {
	l.t.Helper()
	client := status.NewClient(l.gate.WaitingSocket())
	limit := machine.Slower(40 * time.Second)
	err := topo.Until(l.ctx, limit, 10*time.Millisecond, func(ctx context.Context) (err error) {
		if v, err = client.Status(ctx, false); err != nil {
			return err
		}
		if v.TakeOver == nil || v.TakeOver.Asked < times || !strings.Contains(fmt.Sprint(v.TakeOver.Refused), why) {
			return fmt.Errorf("not refused %d times, as %q: %+v", times, why, v.TakeOver)
		}
		return nil
	})
	if err != nil {
		l.t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	return v
}

// TestTakeOverRefused: a next process that does not get what it asks for says why in its own
// status, and is ready then: who has started it beside the running one, and waits for that, ends
// that one, which it takes over from as after any restart.
func TestTakeOverRefused(t *testing.T) {
	if !full() {
		t.Skip("takes a quarter of a minute; set SLUICE_E2E=full")
	}
	const open = 200
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, options: handsOver})
	flows := l.established(open, 10*time.Minute)
	if err := l.gate.WriteConfiguration(l.gate.Configuration() + "flows: {ipv4: 4096, ipv6: 4096}\n"); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.LaunchNext(); err != nil {
		t.Fatal(err)
	}
	client := status.NewClient(l.gate.WaitingSocket())
	var v status.StatusView
	began := time.Now()
	err := topo.Until(l.ctx, time.Minute, 100*time.Millisecond, func(ctx context.Context) (err error) {
		if v, err = client.Status(ctx, false); err == nil && !v.Ready {
			err = fmt.Errorf("not ready: %v, %+v", v.NotReady, v.TakeOver)
		}
		return err
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	if time.Since(began) < 10*time.Second {
		t.Errorf("ready after %v: what passes had no time to", time.Since(began))
	}
	if why := strings.Join(v.TakeOver.Refused, "; "); !strings.HasPrefix(why, "flow table: the running process has") {
		t.Errorf("refused because %q", why)
	}
	if err := l.gate.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.gate.Applied(l.ctx); err != nil {
		t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	l.wantUnbroken(flows, open, "the next process took over by the table")
	l.handOverNoMore()
}

// TestTakeOverUnable: a next process that could not start if the running one ended is never ready,
// also where the two differ: whoever waits for that would end the one that forwards.
func TestTakeOverUnable(t *testing.T) {
	t.Parallel()
	if !full() {
		t.Skip("takes a quarter of a minute; set SLUICE_E2E=full")
	}
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, options: handsOver})
	elsewhere := filepath.Join(t.TempDir(), "bpf")
	for _, c := range []struct{ text, unable, refused string }{
		{l.gate.Configuration() + "metrics: {tokenFile: /none}\n", "metrics.tokenFile", ""},
		{l.gate.Configuration() + "metrics: {tokenFile: /none}\nflows: {ipv4: 4096, ipv6: 4096}\n",
			"metrics.tokenFile", "flow table: "},
		// The running one's programs are pinned where the next process does not look.
		{strings.Replace(l.gate.Configuration(), l.gate.BPFFS(), elsewhere, 1), "bpfFS", "bpfFS: "},
	} {
		if err := l.gate.WriteConfiguration(c.text); err != nil {
			t.Fatal(err)
		}
		if err := l.gate.LaunchNext(); err != nil {
			t.Fatal(err)
		}
		client := status.NewClient(l.gate.WaitingSocket())
		var v status.StatusView
		err := topo.Until(l.ctx, time.Minute, 100*time.Millisecond, func(ctx context.Context) (err error) {
			if v, err = client.Status(ctx, false); err == nil && (v.TakeOver == nil || v.TakeOver.Asked < 5) {
				err = fmt.Errorf("not asked five times: %+v", v.TakeOver)
			}
			return err
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, l.gate.Log())
		}
		t.Logf("ready %v: %q, refused %q", v.Ready, v.NotReady, v.TakeOver.Refused)
		if v.Ready || !strings.Contains(v.TakeOver.Unable, c.unable) {
			t.Errorf("ready %v, unable %q", v.Ready, v.TakeOver.Unable)
		}
		why := strings.Join(v.TakeOver.Refused, "; ")
		if !strings.HasPrefix(why, c.refused) || (c.refused == "") != (why == "") {
			t.Errorf("refused: %q", why)
		}
		if _, err := os.Stat(elsewhere); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("what it may not have was made: %v", err)
		}
		if err := l.gate.StopSecond(); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.gate.WriteConfiguration(l.gate.Configuration()); err != nil {
		t.Fatal(err)
	}
	l.handOverNoMore()
}
