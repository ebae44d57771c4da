package captures

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
)

// taken are workers that only keep the taps that they get.
type taken struct {
	mu   sync.Mutex
	list []*capture.Tap
	err  error
}

func (w *taken) Len() int { return 2 }

func (w *taken) SetTaps(_ context.Context, list []*capture.Tap) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = list
	return w.err
}

// tap returns the tap of a slot, or nil.
func (w *taken) tap(slot int) *capture.Tap {
	w.mu.Lock()
	defer w.mu.Unlock()
	if slot >= len(w.list) {
		return nil
	}
	return w.list[slot]
}

// buffer is a CaptureWriter in memory.
type buffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *buffer) Flush() error { return nil }

func newSet() (*Set, *taken) {
	b := services.NewBuilder(nil)
	svc := &services.Service{ID: 3, Namespace: "shop", Name: "web", PortName: "http", Proto: header.ProtoTCP, Port: 80}
	b.SetService(svc)
	b.SetFrontend(&services.Frontend{Service: svc, Key: services.FrontendKey{
		Addr: header.AddrFrom(netip.MustParseAddr("203.0.113.10")), Port: 80, Proto: header.ProtoTCP}})
	handle := new(services.Handle)
	handle.Store(b.Build())
	w := &taken{}
	return New(Config{Workers: w, Interfaces: []string{"eth0", "eth1", "sluice0"}, Services: handle, Version: "1",
		Ports: func(int) []int { return []int{0, 1, 2} }}), w
}

func endOf(addr string) flowtable.Socket {
	ap := netip.MustParseAddrPort(addr)
	a := header.AddrFrom(ap.Addr())
	return flowtable.SocketOf(&a, ap.Port())
}

// add writes a record as a worker does.
func add(t *testing.T, tap *capture.Tap, worker int, r capture.Record, b string) {
	t.Helper()
	to, ok := tap.Rings[worker].Add(&r, len(b))
	if !ok {
		t.Fatal("the ring has no room")
	}
	copy(to, b)
}

// TestFile: the capture, read back by pcapgo, has each record at its interface, in the order of
// time over all workers, with the packet's length, direction and comment; and the counts of the
// others.
func TestFile(t *testing.T) {
	s, w := newSet()
	ctx, cancel := context.WithCancel(t.Context())
	var out buffer
	type result struct {
		v   status.CaptureView
		err error
	}
	done := make(chan result)
	go func() {
		v, err := s.Run(ctx, &status.CaptureQuery{Service: "shop/web"}, &out)
		done <- result{v, err}
	}()
	for w.tap(0) == nil {
		time.Sleep(time.Millisecond)
	}
	tap, now := w.tap(0), boottime.Nanos()
	flow := capture.Flow{Known: true, Proto: header.ProtoTCP, Service: 3, Client: endOf("198.51.100.7:40000"),
		Frontend: endOf("203.0.113.10:80"), Source: endOf("10.0.1.2:21360"), Backend: endOf("10.0.1.12:8080")}
	reply := flow
	reply.Reply = true
	add(t, tap, 1, capture.Record{At: now + 20, Bytes: 60, Link: 1, Point: capture.Out, Flow: flow}, "left")
	add(t, tap, 0, capture.Record{At: now + 10, Bytes: 60, Link: 0, Point: capture.In, Flow: flow}, "came")
	add(t, tap, 0, capture.Record{At: now + 30, Bytes: 4, Link: 2, Point: capture.In, Flow: reply,
		Verdict: capture.ToKernel}, "back")
	add(t, tap, 0, capture.Record{At: now + 40, Bytes: 4, Point: capture.Dropped, Verdict: capture.Drop,
		Reason: reason.NoFlow}, "lost")
	tap.Rings[0].CountOver(5)
	tap.Rings[1].Publish()
	tap.Rings[0].Publish()
	cancel()
	r := <-done
	if want := (status.CaptureView{Records: 4, OverRate: 5}); r.err != nil || r.v != want {
		t.Fatalf("got %+v, %v", r.v, r.err)
	}
	if w.tap(0) != nil {
		t.Error("the workers still have the tap")
	}
	const of = " service=shop/web:http backend=10.0.1.12:8080 snat=10.0.1.2:21360 client=198.51.100.7:40000 " +
		"vip=203.0.113.10:80 protocol=TCP from="
	in, outward := pcapgo.NgEpbFlagDirectionInbound, pcapgo.NgEpbFlagDirectionOutbound
	want := []string{
		fmt.Sprint("eth0 in ", in, " came 60 verdict=forward"+of+"client worker=0"),
		fmt.Sprint("eth1 out ", outward, " left 60 verdict=forward"+of+"client worker=1"),
		fmt.Sprint("sluice0 in ", in, " back 4 verdict=kernel"+of+"backend worker=0"),
		fmt.Sprint("dropped ", 0, " lost 4 verdict=drop reason=no_flow worker=0"),
	}
	ng, err := pcapgo.NewNgReader(&out, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		b, ci, o, err := ng.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			if n != len(want) {
				t.Errorf("%d packets, want %d", n, len(want))
			}
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		i, err := ng.Interface(ci.InterfaceIndex)
		if err != nil {
			t.Fatal(err)
		}
		flags := pcapgo.NgEpbFlag(0)
		if o.Flags != nil {
			flags = o.Flags.Direction
		}
		got := fmt.Sprint(i.Name, " ", uint32(flags), " ", string(b), " ", ci.Length, " ",
			strings.Join(o.Comments, "|"))
		if n >= len(want) || got != want[n] {
			t.Errorf("packet %d is\n%s, want\n%s", n, got, want[min(n, len(want)-1)])
		}
		if since := time.Since(ci.Timestamp); since < -time.Second || since > time.Minute {
			t.Errorf("packet %d came %v ago", n, since)
		}
	}
}

// TestManyCaptures: there are at most MaxTaps, and each place is free again after its end.
func TestManyCaptures(t *testing.T) {
	s, w := newSet()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for slot := range fastpath.MaxTaps {
		group.Go(func() {
			if _, err := s.Run(ctx, &status.CaptureQuery{}, &buffer{}); err != nil {
				t.Error(err)
			}
		})
		for w.tap(slot) == nil {
			time.Sleep(time.Millisecond)
		}
	}
	_, err := s.Run(ctx, &status.CaptureQuery{}, &buffer{})
	if err == nil || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("one more: %v", err)
	}
	cancel()
	group.Wait()
	if _, err := s.Run(ctx, &status.CaptureQuery{}, &buffer{}); err != nil {
		t.Errorf("after the others: %v", err)
	}
}

// TestEnd: the gateway ends captures with a reason, and takes the taps from the workers although a
// reader is stalled; it begins no other until Resume.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newSet()
		stalled := make(chan struct{})
		done := make(chan status.CaptureView)
		go func() {
			v, _ := s.Run(t.Context(), &status.CaptureQuery{}, &stalledWriter{stalled})
			done <- v
		}()
		synctest.Wait()
		if w.tap(0) == nil {
			t.Fatal("the workers have no tap")
		}
		s.End("a hand-over")
		if w.tap(0) != nil {
			t.Error("the workers still have the tap")
		}
		if _, err := s.Run(t.Context(), &status.CaptureQuery{}, &buffer{}); err == nil || err.Error() != "a hand-over" {
			t.Errorf("a capture began: %v", err)
		}
		close(stalled)
		if v := <-done; v.Ended != "a hand-over" {
			t.Errorf("ended for %q", v.Ended)
		}
		s.Resume()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Run(ctx, &status.CaptureQuery{}, &buffer{}); err != nil {
			t.Errorf("after Resume: %v", err)
		}
	})
}

// stalledWriter takes nothing until its channel is closed.
type stalledWriter struct{ until chan struct{} }

func (w *stalledWriter) Write(b []byte) (int, error) { <-w.until; return len(b), nil }
func (w *stalledWriter) Flush() error                { return nil }

// TestQueriesRefused: a query that cannot be meant is refused before anything is written.
func TestQueriesRefused(t *testing.T) {
	s, w := newSet()
	for _, q := range []status.CaptureQuery{
		{Drops: []string{"no_such_reason"}}, {Service: "shop/none"}, {Program: []uint32{1, 2, 3}},
		{Program: []uint32{1, 0x15, 5, 5, 0}}, {Rate: -1}, {Snap: -1},
	} {
		var out buffer
		if _, err := s.Run(t.Context(), &q, &out); err == nil || out.Len() > 0 {
			t.Errorf("%+v: %v, %d bytes written", q, err, out.Len())
		}
	}
	w.err = errors.New("worker 1 does nothing")
	if _, err := s.Run(t.Context(), &status.CaptureQuery{}, &buffer{}); err == nil {
		t.Error("a capture began without a worker")
	}
	if w.tap(0) != nil {
		t.Error("the workers still have the tap")
	}
}

// udpPort53 is what tcpdump 4.99.3 prints for `tcpdump -y EN10MB -ddd ip and udp dst port 53`.
var udpPort53 = []uint32{11, 40, 0, 0, 12, 21, 0, 8, 2048, 48, 0, 0, 23, 21, 0, 6, 17, 40, 0, 0, 20, 69, 4, 0, 8191,
	177, 0, 0, 14, 72, 0, 0, 16, 21, 0, 1, 53, 6, 0, 0, 262144, 6, 0, 0, 0}

// TestProgram: a program of tcpdump selects packets.
func TestProgram(t *testing.T) {
	s, _ := newSet()
	tap, err := s.tapOf(&status.CaptureQuery{Program: udpPort53})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		packet *headertest.Packet
		match  bool
	}{
		{headertest.UDP("198.51.100.7:1", "203.0.113.10:53", "x"), true},
		{headertest.UDP("198.51.100.7:53", "203.0.113.10:1", "x"), false},
		{headertest.TCP("198.51.100.7:1", "203.0.113.10:53", headertest.SYN), false},
	} {
		b := c.packet.Bytes()
		if got := tap.MatchBytes(b); got != c.match {
			t.Errorf("%x: %v", b, got)
		}
		if n := testing.AllocsPerRun(100, func() { tap.MatchBytes(b) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
	if tap.MatchBytes(nil) {
		t.Error("a packet without bytes matches")
	}
}

// TestConditions: captures that run are shown.
func TestConditions(t *testing.T) {
	s, w := newSet()
	if c := s.Conditions(); len(c) != 0 {
		t.Errorf("without captures: %+v", c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.Run(ctx, &status.CaptureQuery{}, &buffer{})
	}()
	for w.tap(0) == nil {
		time.Sleep(time.Millisecond)
	}
	if c := s.Conditions(); len(c) != 1 || c[0].Level != "ok" || !strings.HasPrefix(c[0].Detail, "1 of 4 captures") {
		t.Errorf("with one: %+v", c)
	}
	w.mu.Lock() // a worker stalls: the next capture waits, and the status does not
	second := make(chan struct{})
	go func() {
		defer close(second)
		_, _ = s.Run(ctx, &status.CaptureQuery{}, &buffer{})
	}()
	two := make(chan struct{})
	go func() {
		for !strings.HasPrefix(s.Conditions()[0].Detail, "2 of 4 captures") {
			time.Sleep(time.Millisecond)
		}
		close(two)
	}()
	select {
	case <-two:
	case <-time.After(10 * time.Second):
		t.Error("the condition waits for a worker that stalls")
	}
	w.mu.Unlock()
	cancel()
	<-done
	<-second
	if c := s.Conditions(); len(c) != 0 {
		t.Errorf("after it: %+v", c)
	}
}
