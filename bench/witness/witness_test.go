package witness

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/bench/topo"
)

// seen collects packets from a tap's goroutine.
type seen struct {
	mu   sync.Mutex
	list []Packet
}

func (s *seen) add(p Packet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, p)
}

func (s *seen) packets() []Packet {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Packet(nil), s.list...)
}

func (s *seen) await(t *testing.T, n int) []Packet {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if got := s.packets(); len(got) >= n {
			return got
		}
	}
	t.Fatalf("saw %v, want %d packets", s.packets(), n)
	return nil
}

// The taps see what begins a connection, and datagrams to their port, and nothing else.
func TestTaps(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces and packet sockets")
	}
	n, err := topo.New(topo.Config{OneArmed: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	client, server := n.Clients[0], n.Backends[0]
	if _, err := server.Serve(8080); err != nil {
		t.Fatal(err)
	}
	var syns, datagrams seen
	tcp, err := SYNs(server, "eth0", syns.add)
	if err != nil {
		t.Fatal(err)
	}
	udp, err := Datagrams(server, "eth0", 8080, datagrams.add)
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(server.Addr4(), 8080)
	begin := time.Now()
	conn, err := client.Dial(context.Background(), "tcp4", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	asked, err := client.Dial(context.Background(), "udp4", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer asked.Close()
	other, err := client.Dial(context.Background(), "udp4", netip.AddrPortFrom(server.Addr4(), 8081).String())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, c := range []net.Conn{other, asked} {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		got  []Packet
		from net.Conn
	}{"SYN": {syns.await(t, 1), conn}, "datagram": {datagrams.await(t, 1), asked}} {
		p := c.got[0]
		if p.Src.String() != c.from.LocalAddr().String() || p.Dst != to {
			t.Errorf("%s: %v, want from %v to %v", name, p, c.from.LocalAddr(), to)
		}
		if late := p.At.Sub(begin); late < 0 || late > time.Since(begin) {
			t.Errorf("%s: received %v after the dial", name, late)
		}
	}
	if syns.packets()[0].Sequence == 0 {
		t.Error("a SYN without its sequence number")
	}
	for name, tap := range map[string]*Tap{"tcp": tcp, "udp": udp} {
		if missed, err := tap.Close(); missed != 0 || err != nil {
			t.Errorf("%s: %d missed, %v", name, missed, err)
		}
	}
	if len(syns.packets()) != 1 || len(datagrams.packets()) != 1 {
		t.Errorf("SYNs %v, datagrams %v: one each was sent", syns.packets(), datagrams.packets())
	}
}

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
func TestWaited(t *testing.T) {
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
		if !errors.Is(err, errOneProcessor) {
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
	before, err := ProcessUsage(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("/bin/sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done").Run(); err != nil {
		t.Fatal(err)
	}
	after, err := ProcessUsage(os.Getpid())
	if err != nil || after.Sub(before).Children < 10*time.Millisecond {
		t.Errorf("children %v, %v", after.Sub(before).Children, err)
	}
	m, err := ProcessMemory(os.Getpid())
	if err != nil || m.Now < 1<<20 || m.Most < m.Now {
		t.Errorf("memory %+v, %v", m, err)
	}
	if _, err := ProcessMemory(-1); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no process: %v", err)
	}
}
