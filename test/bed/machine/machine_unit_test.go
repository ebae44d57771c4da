package machine

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func TestFactor(t *testing.T) {
	for _, c := range []struct {
		text string
		want float64 // 0 is refused
	}{
		{"", 1}, {"1", 1}, {"2.5", 2.5}, {"100", 100},
		{"0", 0}, {"0.5", 0}, {"101", 0}, {"-3", 0}, {"NaN", 0}, {"ten", 0},
	} {
		got, err := parseFactor(c.text)
		if got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%q: %v, %v, want %v", c.text, got, err, c.want)
		}
		if err != nil && !strings.Contains(err.Error(), slowerVariable) {
			t.Errorf("%q: the message does not name the variable: %v", c.text, err)
		}
	}
}

// TestFeatures: what is said of each feature is true of what a user would try, or names the reason.
func TestFeatures(t *testing.T) {
	for _, f := range []Feature{SCTP, Netem, VLAN, Pktgen, IPVS, IPSet} {
		err := f.Missing()
		t.Logf("%s: %v", f.Name, err)
		if err != nil && (!strings.Contains(err.Error(), f.Name) || !strings.Contains(err.Error(), f.Module)) {
			t.Errorf("%s: %v", f.Name, err)
		}
	}
}

// TestLateness: a bound grows by how late sleepers wake, and by nothing before one was seen.
func TestLateness(t *testing.T) {
	var l Lateness
	if bound, late := l.Bound(time.Second, 10); late != 0 || bound != Slower(time.Second) {
		t.Errorf("nothing was seen: %v, %v late", bound, late)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); l.Watch(ctx) }()
	for end := time.Now().Add(time.Minute); l.worst.Load() == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-ended
	bound, late := l.Bound(time.Second, 10)
	if late <= 0 || bound != Slower(time.Second)+10*late {
		t.Errorf("bound %v, %v late", bound, late)
	}
}

// TestCPUTime: the thread's own work counts, and its sleep does not.
func TestCPUTime(t *testing.T) {
	const works, sleeps = 20 * time.Millisecond, time.Second
	took := CPUTime(func() {
		for began := threadTime(); threadTime()-began < works; {
		}
		time.Sleep(sleeps)
	})
	if took < works || took > sleeps/2 {
		t.Errorf("%v, want %v and little more", took, works)
	}
}

// TestWakeUpCost: a millisecond of sleep is not counted, the system call is.
func TestWakeUpCost(t *testing.T) {
	if cost := WakeUpCost(); cost <= 0 || cost >= time.Millisecond {
		t.Errorf("a wake-up costs %v of processor time", cost)
	}
}

// TestTurnsWithout: time counts by the share for which threads ran.
func TestTurnsWithout(t *testing.T) {
	before := Turns{Ran: time.Second, Waited: 3 * time.Second}
	for now, want := range map[Turns]time.Duration{
		{Ran: 2 * time.Second, Waited: 3 * time.Second}: time.Second,
		{Ran: 2 * time.Second, Waited: 6 * time.Second}: time.Second / 4,
		{Ran: 2 * time.Second, Waited: time.Second}:     time.Second, // a thread has ended
		before: time.Second,
	} {
		if got := now.Without(before, time.Second); got != want {
			t.Errorf("%+v: %v, want %v", now, got, want)
		}
	}
	if now := OwnTurns(); now.Ran <= 0 {
		t.Errorf("this process has %+v", now)
	}
}

// TestShort: system calls fail on the function's thread, and on no other one.
func TestShort(t *testing.T) {
	for _, errno := range Shortages {
		elsewhere := make(chan error)
		Short(t, errno, func() {
			if _, err := os.ReadFile(os.DevNull); !errors.Is(err, errno) {
				t.Errorf("a file: %v, want %v", err, errno)
			}
			if _, err := net.Interfaces(); !errors.Is(err, errno) {
				t.Errorf("a socket: %v, want %v", err, errno)
			}
			go func() { _, err := net.Interfaces(); elsewhere <- err }()
			if err := <-elsewhere; err != nil {
				t.Errorf("another thread: %v", err)
			}
		})
	}
}
