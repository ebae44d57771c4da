package bfd

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

var loopbacks = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}

// newEndpoint returns an Endpoint on its own port that sends to itself, and a channel of failed
// sessions.
func newEndpoint(t *testing.T) (*Endpoint, chan string) {
	t.Helper()
	c, err := net.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	port := c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	c.Close()
	failed := make(chan string, 100)
	e := New(Config{Log: slog.New(slog.DiscardHandler), Port: port, Changed: func() {},
		Down: func(a netip.Addr, why string) { failed <- a.String() + ": " + why }})
	t.Cleanup(e.Close)
	return e, failed
}

// await waits until the session with an address has a state.
func await(t *testing.T, e *Endpoint, a netip.Addr, want State) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s, known := e.Status(a)
		if known && s.State == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%v: %+v (%v), want %v", a, s, known, want)
		}
	}
}

func peersOf(p Parameters) (list []Peer) {
	for _, a := range loopbacks {
		list = append(list, Peer{Name: a.String(), Address: a, Parameters: p})
	}
	return list
}

// TestEndpoint: sessions over both families, by an Endpoint that is its own router, come up, stay
// up while their parameters change, and do not count as failed when they are removed.
func TestEndpoint(t *testing.T) {
	t.Parallel()
	e, failed := newEndpoint(t)
	p := Parameters{Receive: 300 * ms, Transmit: 300 * ms, Multiplier: 3}
	e.Set(peersOf(p))
	for _, a := range loopbacks {
		await(t, e, a, Up)
	}
	p.Transmit, p.Multiplier = 150*ms, 5
	e.Set(peersOf(p))
	since, _ := e.Status(loopbacks[0])
	time.Sleep(time.Second)
	if now, _ := e.Status(loopbacks[0]); now != since {
		t.Errorf("%+v, and before %+v", now, since)
	}
	e.Set(nil)
	if s, known := e.Status(loopbacks[0]); known {
		t.Errorf("%+v", s)
	}
	select {
	case f := <-failed:
		t.Error(f)
	case <-time.After(100 * ms):
	}
}

// TestFailure: a session whose router falls silent fails once.
func TestFailure(t *testing.T) {
	t.Parallel()
	e, failed := newEndpoint(t)
	e.Set(peersOf(Parameters{Receive: 100 * ms, Transmit: 100 * ms, Multiplier: 3})[:1])
	await(t, e, loopbacks[0], Up)
	e.mu.Lock()
	e.to++ // no socket listens there
	e.peers[loopbacks[0]].hangUp()
	e.mu.Unlock()
	begin := time.Now()
	await(t, e, loopbacks[0], Down)
	f, took := <-failed, time.Since(begin)
	t.Logf("%s after %v", f, took)
	select {
	case again := <-failed:
		t.Errorf("and again: %s", again)
	case <-time.After(time.Second):
	}
}

// TestStandingQueue: a link that takes no packets stops neither the session of another link nor the
// callers of Status and Set.
func TestStandingQueue(t *testing.T) {
	t.Parallel()
	e, _ := newEndpoint(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[1]) }) // which ends a Write that waits
	f := os.NewFile(uintptr(fds[0]), "no reader")
	standing, err := net.FileConn(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	for err = nil; err == nil; {
		err = send(standing.(*net.UnixConn), make([]byte, 24))
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	list := peersOf(fast)
	e.Set(list)
	e.mu.Lock()
	e.peers[loopbacks[0]].hangUp()
	e.peers[loopbacks[0]].conn = standing.(*net.UnixConn)
	e.mu.Unlock()
	done := make(chan Status)
	go func() {
		var s Status
		for s.State != Up {
			time.Sleep(ms)
			s, _ = e.Status(loopbacks[1])
		}
		for !strings.Contains(s.Why, errQueueFull.Error()) {
			time.Sleep(ms)
			s, _ = e.Status(loopbacks[0])
		}
		e.Set(list)
		done <- s
	}()
	select {
	case s := <-done:
		if s.State == Up {
			t.Errorf("%+v", s)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the other session does not come up, or Status and Set do not return")
	}
}

// TestTTL: a packet with another TTL or hop limit than 255 has passed a router and is dropped.
func TestTTL(t *testing.T) {
	t.Parallel()
	e, _ := newEndpoint(t)
	e.to++ // do not send to itself
	e.Set(peersOf(Parameters{Receive: 100 * ms, Transmit: 100 * ms, Multiplier: 3}))
	forged := packet{state: Down, my: 7, multiplier: 3, transmit: time.Second, receive: time.Second}
	b := forged.marshal()
	for _, a := range loopbacks {
		c, err := net.Dial("udp", netip.AddrPortFrom(a, e.config.Port).String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		set := ipv6.NewConn(c).SetHopLimit
		if a.Is4() {
			set = ipv4.NewConn(c).SetTTL
		}
		for _, ttl := range []int{1, 64, 254} {
			if err := set(ttl); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write(b[:]); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(50 * ms)
		if s, _ := e.Status(a); s.State != Down || s.Why != "no packet with TTL 255 arrives from the router "+
			"(RFC 5881, section 5)" {
			t.Errorf("%v: %+v", a, s)
		}
		if err := set(255); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(b[:]); err != nil {
			t.Fatal(err)
		}
		await(t, e, a, Init)
	}
}

// TestPortTaken: the status shows that another process has the port; the port is opened when it is
// free.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	e, _ := newEndpoint(t)
	c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(e.config.Port)})
	if err != nil {
		t.Fatal(err)
	}
	list := peersOf(fast)[:1]
	e.Set(list)
	if s, _ := e.Status(loopbacks[0]); s.Why == "" || s.State != Down {
		t.Errorf("%+v", s)
	}
	c.Close()
	e.Set(list)
	await(t, e, loopbacks[0], Up)
}
