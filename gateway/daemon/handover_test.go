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

// TestHandOverForm: what one process gives is read by one of another version, which must know the
// form by the protocol's number.
func TestHandOverForm(t *testing.T) {
	pinned.Same(t, "testdata/handover.golden", strconv.Itoa(handover.Protocol),
		form("offer", reflect.TypeFor[offer]())+form("state", reflect.TypeFor[state]()))
}

// form has a line for each field, by its name, which is what gob knows it by.
func form(path string, of reflect.Type) (lines string) {
	switch of.Kind() {
	case reflect.Struct:
		if of == reflect.TypeFor[time.Time]() {
			break // which has a form of its own (encoding.BinaryMarshaler)
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

// TestNothingIsGivenAtTheEnd: a process that ends gives nothing any more, one that has given all
// knows it, and one whose next process has asked for nothing yet does not wait for that.
func TestNothingIsGivenAtTheEnd(t *testing.T) {
	d := &Daemon{giving: giving{done: make(chan struct{})}}
	u := socketPair(t)
	if !d.giving.begin(u) {
		t.Error("nothing is given from the start")
	}
	d.giving.busy.Lock() // as giveOnce does
	go func() {
		defer d.giving.busy.Unlock()
		var b [1]byte
		_, _ = u.Read(b[:]) // for what never comes
	}()
	if d.endGiving() {
		t.Error("nothing was given")
	}
	if d.giving.begin(nil) || d.giving.offer(true) {
		t.Error("a next process would be given all while this one stops it")
	}
	close(d.giving.done)
	if !d.endGiving() {
		t.Error("all was given, and would be stopped")
	}
}

// TestStalledIsNotGiven: while a worker stands still, a next process is told so, and nothing stops
// for it.
func TestStalledIsNotGiven(t *testing.T) {
	d := &Daemon{fixed: config.Default(), open: make(chan struct{}), workers: neverRun(t, heapTable(t))}
	close(d.open)
	_, err := (&giver{d: d}).Facts(&handover.Hello{})
	if err == nil || !strings.Contains(err.Error(), "worker 0 stands still") {
		t.Errorf("got %v, want that worker 0 stands still", err)
	}
}

// TestNobodyIsInAGivenTable: once the workers have stopped, nothing of this process enters the flow
// table until it goes on: the next process has the free records in lists of its own by then.
func TestNobodyIsInAGivenTable(t *testing.T) {
	table := heapTable(t)
	d := &Daemon{workers: neverRun(t, table), flows: &flowtable.File{Table: table}, hops: nexthop.NewTable()}
	d.services.Store(&services.Snapshot{})
	ctx, cancel := context.WithCancel(context.Background())
	d.workers.Run(ctx, func(err error) { t.Error(err) })
	t.Cleanup(func() { cancel(); d.workers.Wait() })
	var err error
	d.reader, err = flows.NewReader(d.flows.Table, &d.services)
	must(t, err)
	d.explain, err = explain.New(explain.Config{Flows: d.flows.Table, Hops: d.hops})
	must(t, err)
	q, err := status.ParseExplain("198.51.100.7:40000", "203.0.113.10:80/UDP", false)
	must(t, err)
	asked := explain.Gateway{Snapshot: d.services.Load(), NextHop: func(netip.Addr) string { return "" },
		Steers: func(*header.Tuple) (xdpprog.Match, error) { return xdpprog.MatchNone, nil }}
	users := map[string]func() error{
		"explain": func() error { _, err := d.explain.Explain(&q, &asked); return err },
		"list":    func() error { d.Flows(&status.FlowFilter{}, 0, 1, nil); return nil },
		"delete":  func() error { _, err := d.DeleteFlows(t.Context(), &status.FlowFilter{}); return err },
		"in use":  func() error { d.reader.InUse(&steer.Set{}); return nil },
		"ports":   func() error { d.SourcePorts(); return nil },
		"adopt":   func() error { d.reader.Adopt(); return nil },
	}
	for name, use := range users {
		g := &giver{d: d}
		g.states = gob.NewEncoder(&g.out)
		if _, err := g.Stop(t.Context()); err != nil {
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
		g.Continue()
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
	s.Tuning.RingSize, s.Tuning.Sleep = 64, config.Duration(10*time.Millisecond)
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

// TestAskedWhileItEnds: a process that ends tells whoever asks that it does, also after the kernel
// had no descriptor for a connection, and then removes its socket, whoever is connected.
func TestAskedWhileItEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "handover.sock")
	l, err := status.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{log: slog.New(slog.DiscardHandler), giving: giving{done: make(chan struct{}),
		listener: &shortListener{Listener: l, short: 1}}}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan struct{})
	go func() {
		defer close(served)
		d.serveHandOver(ctx)
	}()
	d.endGiving()
	for range 2 {
		var refused *handover.RefusedError
		if err := ask(t, path); !errors.As(err, &refused) || !slices.Equal(refused.Reasons, []string{"it is ending"}) {
			t.Errorf("asked, it says: %v", err)
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
	if took := time.Since(began); took > time.Second {
		t.Errorf("the end took %v", took)
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

// socketPair returns one end of a pair of connected sockets, on which nothing comes.
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

// TestAttempts: a version that fails three times after the offer is refused for a while, others are
// not. What failed on this side does not count.
func TestAttempts(t *testing.T) {
	var a attempts
	failed, own := &handover.PeerError{Err: io.EOF}, errors.New("worker 1 does not stop")
	now := time.Unix(1e9, 0)
	for n := range mostAttempts {
		if err := a.tooMany("v2", now); err != nil {
			t.Errorf("after %d attempts: %v", n, err)
		}
		now = now.Add(time.Minute)
		a.note("v2", own, now)
		a.note("v2", failed, now)
	}
	if a.tooMany("v2", now.Add(restAfter)) == nil || a.tooMany("v3", now) != nil {
		t.Error("want v2 refused, and v3 not")
	}
	if err := a.tooMany("v2", now.Add(restAfter+1)); err != nil {
		t.Errorf("after %v: %v", restAfter, err)
	}
	if a.note("v3", own, now); a.tooMany("v2", now) == nil {
		t.Error("an error of this side ends the rest of v2")
	}
	if a.note("v3", failed, now); a.tooMany("v2", now) != nil {
		t.Error("v2 is refused after an attempt of another version")
	}
}
