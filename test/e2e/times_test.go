//go:build root

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

const (
	slowPort        = 81
	slowBackendPort = 8181
)

// serveSlowly starts servers of TCP and UDP on a backend that answer after the time in a question,
// or reset the connection for the question "reset".
func (l *lab) serveSlowly(h *topo.Host) {
	l.t.Helper()
	address := fmt.Sprintf("%s:%d", h.Addr4(), slowBackendPort)
	listener, err := h.Listen("tcp", address)
	if err != nil {
		l.t.Fatal(err)
	}
	packets, err := h.ListenPacket("udp", address)
	if err != nil {
		l.t.Fatal(err)
	}
	var served sync.WaitGroup
	l.t.Cleanup(func() {
		listener.Close()
		packets.Close()
		served.Wait()
	})
	served.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			served.Go(func() { answerSlowly(c.(*net.TCPConn)) })
		}
	})
	served.Go(func() {
		b := make([]byte, 100)
		for {
			n, from, err := packets.ReadFrom(b)
			if err != nil {
				return
			}
			d, _ := time.ParseDuration(string(b[:n]))
			time.Sleep(d)
			_, _ = packets.WriteTo([]byte("answer"), from)
		}
	})
}

func answerSlowly(c *net.TCPConn) {
	defer c.Close()
	for in := bufio.NewScanner(c); in.Scan(); {
		if in.Text() == "reset" {
			_ = c.SetLinger(0)
			return
		}
		d, _ := time.ParseDuration(in.Text())
		time.Sleep(d)
		if _, err := io.WriteString(c, "answer\n"); err != nil {
			return
		}
	}
}

// dialSlow connects to the slow service, and returns how long that took.
func (l *lab) dialSlow() (*net.TCPConn, time.Duration) {
	l.t.Helper()
	began := time.Now()
	c, err := l.Clients[0].Dial(l.ctx, "tcp", at(vip4, slowPort).String())
	if err != nil {
		l.t.Fatal(err)
	}
	took := time.Since(began)
	l.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c.(*net.TCPConn), took
}

// tcpInfo is what the client's kernel knows of a connection.
func (l *lab) tcpInfo(c *net.TCPConn) (info *unix.TCPInfo) {
	l.t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		controlErr := raw.Control(func(fd uintptr) {
			info, err = unix.GetsockoptTCPInfo(int(fd), syscall.IPPROTO_TCP, unix.TCP_INFO)
		})
		if err == nil {
			err = controlErr
		}
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return info
}

// askSlowly asks for an answer after d, and returns how long the client's kernel waited for it.
func (l *lab) askSlowly(c *net.TCPConn, d time.Duration) time.Duration {
	l.t.Helper()
	if _, err := fmt.Fprintf(c, "%v\n", d); err != nil {
		l.t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 100)); err != nil {
		l.t.Fatal(err)
	}
	info := l.tcpInfo(c)
	return time.Duration(info.Last_data_sent-info.Last_data_recv) * time.Millisecond
}

// times returns the times of the slow service, of TCP or UDP, which has one backend.
func (l *lab) times(protocol string) status.TimesView {
	l.t.Helper()
	all, err := l.gate.Client.Times(l.ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	for i := range all.Backends {
		if b := &all.Backends[i]; b.Protocol == protocol && b.Port == slowPort {
			if b.Address != netip.AddrPortFrom(l.Backends[0].Addr4(), slowBackendPort) {
				l.t.Fatalf("the slow service has the backend %v", b.Address)
			}
			return b.TimesView
		}
	}
	l.t.Fatalf("no times of the slow service: %+v", all)
	return status.TimesView{}
}

// wantTimes compares a histogram with the mean of what the client measured.
func (l *lab) wantTimes(what string, h *status.HistogramView, n int, client time.Duration) {
	l.t.Helper()
	mean, median := time.Duration(0), time.Duration(h.MedianMicros)*time.Microsecond
	if h.Count > 0 {
		mean = time.Duration(h.SumMicros/h.Count) * time.Microsecond
	}
	off, _ := l.lateness.Bound(client/10, 1) // the client's thread, or the worker's, may wake up late
	if h.Count != uint64(n) || (mean-client).Abs() > off || (median-client).Abs() > off {
		l.t.Errorf("%s: %d times with a mean of %v and a median of %v; the client measured %d, mean %v", what, h.Count,
			mean, median, n, client)
	}
	l.t.Logf("%s: mean %v, median %v, the client's mean %v", what, mean, median, client)
}

// TestTimes: the gateway's times of a backend that answers late, loses SYNs and resets agree
// with the times that the client's kernel measures.
func TestTimes(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{
		Config: topo.Config{Backends: 1, Queues: 2}, small: true,
		prepare: func(l *lab) { l.serveSlowly(l.Backends[0]) },
	})
	slow := launch.Service{Name: "slow", Port: slowPort, VIPs: []string{vip4},
		Endpoints: []launch.Endpoint{{Addr: l.Backends[0].Addr4(), Port: slowBackendPort, Node: l.Backends[0].Name}}}
	datagrams := slow
	datagrams.Name, datagrams.UDP, datagrams.VIPs = "slow-udp", true, []string{vip4}
	l.apply(l.web(l.Backends...), l.dns(l.Backends...), slow, datagrams)
	l.applied()

	// Answers, and after them packets of the plain path, which are not measured.
	const answers, wait = 20, 150 * time.Millisecond
	var sum time.Duration
	for range answers {
		c, _ := l.dialSlow()
		time.Sleep(50 * time.Millisecond) // the wait is from the question on
		sum += l.askSlowly(c, wait)
		l.askSlowly(c, 0)
		c.Close()
	}
	got := l.times("TCP")
	l.wantTimes("answers", &got.Answer, answers, sum/answers)
	if got.Handshake.Count != answers || got.RepeatedSYNs+got.Refused+got.ResetByBackend+got.ResetByClient != 0 {
		t.Errorf("without losses and resets: %+v", got)
	}
	sum = 0
	for range answers {
		c, err := l.Clients[0].Dial(l.ctx, "udp", at(vip4, slowPort).String())
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_ = c.SetDeadline(began.Add(time.Minute))
		if _, err = io.WriteString(c, "80ms"); err == nil {
			_, err = c.Read(make([]byte, 100))
		}
		if err != nil {
			t.Fatal(err)
		}
		sum += time.Since(began)
		c.Close()
	}
	udp := l.times("UDP")
	l.wantTimes("answers of UDP", &udp.Answer, answers, sum/answers)

	// The backend loses first SYNs.
	const lost = 5
	before := got
	nft(t, l.Backends[0], fmt.Sprintf(`table inet loss {
	chain in { type filter hook input priority 0; tcp dport %d tcp flags & (syn | ack) == syn drop; }
}`, slowBackendPort))
	type dialed struct {
		took        time.Duration
		retransmits uint32
	}
	results := make(chan dialed, lost)
	for range lost {
		go func() {
			began := time.Now()
			c, err := l.Clients[0].Dial(l.ctx, "tcp", at(vip4, slowPort).String())
			if err != nil {
				t.Error(err)
				results <- dialed{}
				return
			}
			defer c.Close()
			results <- dialed{time.Since(began), uint32(l.tcpInfo(c.(*net.TCPConn)).Total_retrans)}
		}()
	}
	time.Sleep(300 * time.Millisecond)
	nft(t, l.Backends[0], "delete table inet loss")
	sum = 0
	retransmits := uint64(0)
	for range lost {
		r := <-results
		sum += r.took
		retransmits += uint64(r.retransmits)
	}
	got = l.times("TCP")
	lossy := got.Minus(&before)
	l.wantTimes("handshakes with a lost SYN", &lossy.Handshake, lost, sum/lost)
	if lossy.RepeatedSYNs != retransmits || retransmits < lost || lossy.RepeatedSYNsAfterAnswer != 0 {
		t.Errorf("%d SYNs repeated, %d after the answer; the client's kernel repeated %d", lossy.RepeatedSYNs,
			lossy.RepeatedSYNsAfterAnswer, retransmits)
	}

	// The backend resets, and refuses when nobody listens.
	const resets = 3
	before = got
	for range resets {
		c, _ := l.dialSlow()
		if _, err := io.WriteString(c, "reset\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "reset") {
			t.Errorf("the client reads %v, want a reset", err)
		}
	}
	reset := l.times("TCP")
	if d := reset.Minus(&before); d.ResetByBackend != resets || d.ResetByClient != 0 || d.Answer.Count != 0 {
		t.Errorf("%d connections were reset by the backend and %d by the client, %d answered, want %d, 0, 0",
			d.ResetByBackend, d.ResetByClient, d.Answer.Count, resets)
	}

	// A connection whose answer the next process sees: it is not measured, and goes on.
	c, _ := l.dialSlow()
	if _, err := io.WriteString(c, "1s\n"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	l.killAndStart()
	if _, err := c.Read(make([]byte, 100)); err != nil {
		t.Errorf("after a kill: %v", err)
	}
	l.askSlowly(c, 0)
	if after := l.times("TCP"); after.Handshake.Count+after.Answer.Count != 0 {
		t.Errorf("the next process measured %+v", after)
	}
}
