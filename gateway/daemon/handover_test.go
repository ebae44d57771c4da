package daemon

import (
	"context"
	"encoding/gob"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/explain"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/gateway/handover"
	"sluice.dev/sluice/gateway/workers"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/pinned"
	"sluice.dev/sluice/xdpprog"
)

// TestHandOverForm: a process of another version reads the offer and the state. It must know their
// form by the protocol's number.
func TestHandOverForm(t *testing.T) {
	pinned.Same(t, "testdata/handover.golden", strconv.Itoa(handover.Protocol),
		form("offer", reflect.TypeFor[offer]())+form("state", reflect.TypeFor[state]()))
}

// form returns a line for each field, with its name, by which gob knows it.
func form(path string, of reflect.Type) (lines string) {
	switch of.Kind() {
	case reflect.Struct:
		if of == reflect.TypeFor[time.Time]() {
			break // it has its own form (encoding.BinaryMarshaler)
		}
		for i := range of.NumField() {
			lines += form(path+"."+of.Field(i).Name, of.Field(i).Type)
		}
		return lines
	case reflect.Slice:
		return form(path+"[]", of.Elem())
	}
	return path + " " + of.String() + "\n"
}

// TestEndWithoutOffer: a process that ends offers nothing any more, and does not wait for a
// successor that has connected and has not asked for the offer.
func TestEndWithoutOffer(t *testing.T) {
	h := newHandOver(false, slog.New(slog.DiscardHandler))
	h.enter(owning)
	u := socketPair(t)
	if !h.begin(u) {
		t.Error("it refuses the first successor")
	}
	h.answering.Lock() // as answer does
	go func() {
		defer h.answering.Unlock()
		var b [1]byte
		_, _ = u.Read(b[:]) // returns when end closes the connection
	}()
	if h.end() {
		t.Error("no successor has accepted an offer")
	}
	if h.begin(nil) || h.offer(t.Context()) == nil {
		t.Error("it would offer its state while it stops")
	}
}

// TestEndWithOffer: a process that is asked to end while a successor has its offer waits for the
// result. It stops only if the successor has failed, and saves no drains meanwhile.
func TestEndWithOffer(t *testing.T) {
	for name, accepts := range map[string]bool{"accepted": true, "failed": false} {
		t.Run(name, func(t *testing.T) {
			h := newHandOver(false, slog.New(slog.DiscardHandler))
			save := func() error { return nil }
			if h.offer(t.Context()) == nil {
				t.Error("it offers what it does not own yet")
			}
			h.enter(owning)
			offered, finish := make(chan struct{}), make(chan struct{})
			u := socketPair(t)
			go h.answer(t.Context(), u, func() bool {
				if err := h.offer(t.Context()); err != nil {
					t.Error(err)
				}
				close(offered)
				<-finish
				if !accepts {
					h.withdraw()
				}
				return accepts
			}, nil)
			<-offered
			if err := h.unlessOffering(save); !errors.Is(err, errOffering) {
				t.Errorf("drains are saved after the successor has read them: %v", err)
			}
			accepted := make(chan bool)
			go func() { accepted <- h.end() }()
			select {
			case <-accepted:
				t.Error("it ends before the successor has answered")
			case <-time.After(20 * time.Millisecond):
			}
			if err := h.unlessOffering(save); !errors.Is(err, errOffering) {
				t.Errorf("asked to end, it saves drains after the successor has read them: %v", err)
			}
			if err := u.SetDeadline(time.Time{}); err != nil {
				t.Errorf("asked to end, it cuts off the successor: %v", err)
			}
			close(finish)
			if got := <-accepted; got != accepts {
				t.Errorf("accepted is %v", got)
			}
			if err := h.unlessOffering(save); (err == nil) == accepts {
				t.Errorf("saving drains afterwards: %v", err)
			}
			if h.offer(t.Context()) == nil {
				t.Error("it offers its state again")
			}
		})
	}
}

// TestSaveThatHangs: a write of a file that does not end delays no request about the hand-over, and
// its caller, other writes (of the control loop) and an offer no longer than their time.
func TestSaveThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandOver(false, slog.New(slog.DiscardHandler))
		h.enter(owning)
		began, release := make(chan struct{}), make(chan struct{})
		first := make(chan error, 1)
		go func() { first <- h.unlessOffering(func() error { close(began); <-release; return nil }) }()
		<-began
		start := time.Now()
		if err := h.unlessOffering(func() error { t.Error("two writes at once"); return nil }); err != errSlowDisk {
			t.Errorf("the second write: %v", err)
		}
		if err := <-first; err != errSlowDisk {
			t.Errorf("the write that hangs: %v", err)
		}
		if took := time.Since(start); took > saveTime {
			t.Errorf("they have returned after %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := h.offer(ctx); err != errSlowDisk {
			t.Errorf("offered while a file is written, which the successor would not see: %v", err)
		}
		if h.succeeded() || !h.in(owning) {
			t.Error("the phase is wrong")
		}
		close(release)
		synctest.Wait()
		if err := h.unlessOffering(func() error { return nil }); err != nil {
			t.Errorf("after the end of the write: %v", err)
		}
		if err := h.offer(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestEndWhileASaveHangs: the end of the process does not wait for the write of a file.
func TestEndWhileASaveHangs(t *testing.T) {
	h := newHandOver(false, slog.New(slog.DiscardHandler))
	h.enter(owning)
	began, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	go func() { _ = h.unlessOffering(func() error { close(began); <-release; return nil }) }()
	<-began
	if h.end() {
		t.Error("it has handed over")
	}
}

// TestStalledWorkerRefuses: while a worker is stalled, a successor is refused with that reason, and
// nothing stops.
func TestStalledWorkerRefuses(t *testing.T) {
	d := &Daemon{open: make(chan struct{}), workers: neverRun(t, heapTable(t))}
	close(d.open)
	_, err := (&predecessor{d: d}).Facts(&handover.Hello{})
	if err == nil || !strings.Contains(err.Error(), "worker 0 is stalled") {
		t.Errorf("got %v, want that worker 0 is stalled", err)
	}
}

// TestFlowTableIsNotUsedAfterStop: once the workers have stopped, no goroutine of this process uses
// the flow table until it continues, because the successor has the free records in its own lists.
func TestFlowTableIsNotUsedAfterStop(t *testing.T) {
	table := heapTable(t)
	d := &Daemon{workers: neverRun(t, table), flows: flowState{file: &flowtable.File{Table: table}},
		hops: nexthop.NewTable()}
	d.services.Store(&services.Snapshot{})
	ctx, cancel := context.WithCancel(context.Background())
	d.workers.Run(ctx, func(err error) { t.Error(err) })
	t.Cleanup(func() { cancel(); d.workers.Wait() })
	var err error
	d.flows.reader, err = flows.NewReader(d.flows.file.Table, &d.services)
	must(t, err)
	d.explain, err = explain.New(explain.Config{Flows: d.flows.file.Table, Hops: d.hops})
	must(t, err)
	q, err := status.ParseExplain("198.51.100.7:40000", "203.0.113.10:80/UDP", false)
	must(t, err)
	asked := explain.Gateway{Snapshot: d.services.Load(), NextHop: func(netip.Addr) string { return "" },
		Steers: func(*header.Tuple) (xdpprog.Match, error) { return xdpprog.MatchNone, nil }}
	users := map[string]func() error{
		"explain": func() error { _, err := d.explain.Explain(&q, &asked); return err },
		"list":    func() error { d.Flows(&status.FlowFilter{}, 0, 1, nil); return nil },
		"delete":  func() error { _, err := d.DeleteFlows(t.Context(), &status.FlowFilter{}); return err },
		"in use":  func() error { d.flows.reader.InUse(&steer.Set{}); return nil },
		"ports":   func() error { d.SourcePorts(); return nil },
		"adopt":   func() error { d.flows.reader.Adopt(); return nil },
	}
	for name, use := range users {
		p := &predecessor{d: d}
		p.states = gob.NewEncoder(&p.stateBytes)
		if _, err := p.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		used := make(chan error, 1)
		go func() { used <- use() }()
		select {
		case <-used:
			t.Errorf("%s does not wait", name)
			used <- nil
		case <-time.After(20 * time.Millisecond):
		}
		p.Continue()
		select {
		case err := <-used:
			must(t, err)
		case <-time.After(5 * time.Second):
			t.Fatalf("%s waits for ever", name)
		}
	}
}

func heapTable(t *testing.T) *flowtable.Table {
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1024, IPv6Flows: 1024,
		Timeouts: flowtable.DefaultTimeouts()})
	must(t, err)
	return table
}

// neverRun returns a worker that was never run.
func neverRun(t *testing.T, table *flowtable.Table) *workers.Group {
	s := config.Default()
	s.Tuning.RingSize = 64
	snapshot := new(services.Handle)
	snapshot.Store(&services.Snapshot{})
	g, err := workers.New(workers.Config{Settings: s, Log: slog.New(slog.DiscardHandler), FrameSize: 2048,
		Flows: table, Plan: devices.Plan{Workers: 1, Places: [][]devices.Place{{{}}}}, Services: snapshot,
		Hops: nexthop.NewTable()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// TestRefusesWhileItEnds: a process that ends refuses a successor with that reason, also after the
// kernel had no descriptor for a connection. It then removes its socket, although a successor is
// connected.
func TestRefusesWhileItEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "handover.sock")
	l, err := status.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{log: slog.New(slog.DiscardHandler), handOver: newHandOver(false, slog.New(slog.DiscardHandler))}
	d.handOver.socket = &shortListener{Listener: l, short: 1}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan struct{})
	go func() {
		defer close(served)
		d.handOver.serve(ctx, path, func(u *net.UnixConn) bool {
			p := &predecessor{d: d}
			return d.handOver.answer(ctx, u, func() bool { return p.give(ctx, u) }, func() { p.refuse(ctx, u) })
		})
	}()
	d.handOver.end()
	for range 2 {
		var refused *handover.RefusedError
		if err := ask(t, path); !errors.As(err, &refused) || !slices.Equal(refused.Reasons, []string{"it is ending"}) {
			t.Errorf("the successor gets: %v", err)
		}
	}
	mute, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	began := time.Now()
	cancel()
	<-served
	if d := time.Since(began); d > time.Second {
		t.Errorf("the end took %v", d)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// shortListener has no descriptor for the first connections.
type shortListener struct {
	net.Listener
	short int
}

func (l *shortListener) Accept() (net.Conn, error) {
	if l.short > 0 {
		l.short--
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", unix.EMFILE)}
	}
	return l.Listener.Accept()
}

// ask asks for a hand-over, which is refused.
func ask(t *testing.T, path string) error {
	u, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	c, err := handover.NewConn(u.(*net.UnixConn))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = handover.Take(t.Context(), c, asker{}, "next", handover.DefaultTimes)
	return err
}

// asker is a handover.Taker that has nothing but facts.
type asker struct{ handover.Taker }

func (asker) Facts() ([]handover.Fact, string, error) { return nil, "", nil }

// socketPair returns one end of a pair of connected sockets. The other end sends nothing.
func socketPair(t *testing.T) *net.UnixConn {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[1]) })
	f := os.NewFile(uintptr(fds[0]), "")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.UnixConn)
}

// TestAttempts: a version that fails three times after the offer is refused for a while, and other
// versions are not. A failure of this process does not count.
func TestAttempts(t *testing.T) {
	var a attempts
	failed, own := &handover.PeerError{Err: io.EOF}, errors.New("worker 1 does not stop")
	now := time.Unix(1e9, 0)
	for n := range mostAttempts {
		if err := a.check("v2", now); err != nil {
			t.Errorf("after %d attempts: %v", n, err)
		}
		now = now.Add(time.Minute)
		a.note("v2", own, now)
		a.note("v2", failed, now)
	}
	if a.check("v2", now.Add(restAfter)) == nil || a.check("v3", now) != nil {
		t.Error("want v2 refused, and v3 not")
	}
	if err := a.check("v2", now.Add(restAfter+1)); err != nil {
		t.Errorf("after %v: %v", restAfter, err)
	}
	if a.note("v3", own, now); a.check("v2", now) == nil {
		t.Error("an error of this side ends the rest of v2")
	}
	if a.note("v3", failed, now); a.check("v2", now) != nil {
		t.Error("v2 is refused after an attempt of another version")
	}
}
