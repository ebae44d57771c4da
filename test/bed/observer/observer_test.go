package observer

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A pinned thread's time is told from the others'.
func TestUsage(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("one processor: pinned threads cannot be told")
	}
	before, err := ProcessUsage(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	pinned, read := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		var set unix.CPUSet
		set.Set(0)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			pinned <- err
			return
		}
		burn(300 * time.Millisecond)
		pinned <- nil
		<-read
	}()
	burn(300 * time.Millisecond)
	if err := <-pinned; err != nil {
		t.Fatal(err)
	}
	after, err := ProcessUsage(os.Getpid())
	close(read)
	if err != nil {
		t.Fatal(err)
	}
	// A thread that was pinned may have worked before, so there may be more.
	u := after.Sub(before)
	if u.Pinned < 250*time.Millisecond || u.Own < 550*time.Millisecond {
		t.Errorf("%+v, want 300 ms pinned and 300 ms not", u)
	}
	free := busy(t)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		u, err := ProcessUsage(free.Pid)
		if err != nil || u.Pinned != 0 {
			t.Fatalf("a process that is not pinned: %+v, %v", u, err)
		}
		if u.Own > 50*time.Millisecond {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("a process that works: %+v after 10 s", u)
		}
	}
}

// busy is a process that works until the test ends.
func busy(t *testing.T) *os.Process {
	t.Helper()
	c := exec.Command("/bin/sh", "-c", "while :; do :; done")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = c.Wait() // it was killed
	})
	return c.Process
}

// burn uses processor time of the calling thread.
func burn(d time.Duration) {
	var start, now unix.Timespec
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &start) // cannot fail: the clock exists
	for now = start; time.Duration(now.Nano()-start.Nano()) < d; {
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now)
	}
}

// Two processes on one processor wait for each other, and have no thread that is free.
func TestWaitingTime(t *testing.T) {
	var set unix.CPUSet
	set.Set(0)
	first, last := busy(t), busy(t)
	for _, p := range []*os.Process{first, last} {
		if err := unix.SchedSetaffinity(p.Pid, &set); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		u, err := ProcessUsage(last.Pid)
		if !errors.Is(err, ErrOneProcessor) {
			t.Fatalf("all its threads are pinned: %v", err)
		}
		if u.Waited > 100*time.Millisecond && u.Pinned > 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%+v after 10 s", u)
		}
	}
}

func TestChildrenAndMemory(t *testing.T) {
	usage := func() Usage {
		u, err := ProcessUsage(os.Getpid())
		if err != nil && !(runtime.NumCPU() == 1 && errors.Is(err, ErrOneProcessor)) {
			t.Fatal(err)
		}
		return u
	}
	before := usage()
	if err := exec.Command("/bin/sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done").Run(); err != nil {
		t.Fatal(err)
	}
	if u := usage().Sub(before); u.Children < 10*time.Millisecond {
		t.Errorf("children %v", u.Children)
	}
	m, err := ProcessMemory(os.Getpid())
	if err != nil || m.Now < 1<<20 || m.Most < m.Now {
		t.Errorf("memory %+v, %v", m, err)
	}
	if _, err := ProcessMemory(-1); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no process: %v", err)
	}
}
