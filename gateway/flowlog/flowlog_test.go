package flowlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/internal/statefile"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
)

var t0 = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func socket(s string) flowtable.Socket {
	a := netip.MustParseAddrPort(s)
	h := header.AddrFrom(a.Addr())
	return flowtable.SocketOf(&h, a.Port())
}

func snapshot() *services.Snapshot {
	b := services.NewBuilder(nil)
	svc := &services.Service{ID: 1, Namespace: "shop", Name: "web", PortName: "http", Proto: header.ProtoTCP,
		Port: 80}
	b.SetService(svc)
	b.SetFrontend(&services.Frontend{
		Key: services.FrontendKey{Addr: header.AddrFrom(netip.MustParseAddr("203.0.113.9")), Port: 80,
			Proto: header.ProtoTCP}, Service: svc,
	})
	b.SetBackend(services.Backend{Addr: header.AddrFrom(netip.MustParseAddr("192.0.2.77")), Port: 80,
		Proto: header.ProtoTCP, Ref: services.MakeBackendRef(3, 1)})
	return b.Build()
}

// code is an encoder whose clock reads t0 at 1 s.
func code() *encoder { return &encoder{offset: t0.UnixNano() - 1e9, services: snapshot()} }

// TestRecords: a line is JSON that decodes to the flow.
func TestRecords(t *testing.T) {
	end := flowtable.Event{
		At: 3e9, Start: 1e9, Client: socket("198.51.100.7:40000"), Frontend: socket("203.0.113.9:80"),
		Source: socket("10.0.0.1:21360"), Backend: socket("10.0.1.12:8080"), Service: 1, Seen: 25,
		Proto: header.ProtoTCP, State: flowtable.TimeWaitBackend, Ended: flowtable.EndTimeout,
	}
	want := Record{
		Time: t0.Add(2 * time.Second), Event: End, Protocol: "TCP",
		Client: netip.MustParseAddrPort("198.51.100.7:40000"), VIP: netip.MustParseAddrPort("203.0.113.9:80"),
		SNAT:    netip.MustParseAddrPort("10.0.0.1:21360"),
		Backend: netip.MustParseAddrPort("10.0.1.12:8080"), Service: "shop/web:http", Start: t0,
		LastPacket: t0.Add(1500 * time.Millisecond), State: "TIME_WAIT", Closed: "fin_backend", Why: "timeout",
	}
	for _, tt := range []struct {
		name   string
		change func(*flowtable.Event)
		want   func(*Record)
	}{
		{"closed by the backend", func(*flowtable.Event) {}, func(*Record) {}},
		{"closed by the client", func(e *flowtable.Event) { e.State = flowtable.LastAckClient },
			func(r *Record) { r.State, r.Closed = "LAST_ACK", "fin_client" }},
		{"reset by the backend", func(e *flowtable.Event) {
			e.State, e.Reset, e.ResetBy = flowtable.Established, true, flowtable.ReplySide
		}, func(r *Record) { r.State, r.Closed = "ESTABLISHED", "rst_backend" }},
		{"reset by the client", func(e *flowtable.Event) { e.State, e.Reset = flowtable.FinClient, true },
			func(r *Record) { r.State, r.Closed = "FIN_CLIENT", "rst_client" }},
		{"refused", func(e *flowtable.Event) { e.State = flowtable.Closed },
			func(r *Record) { r.State, r.Closed = "CLOSED", "refused" }},
		{"idle and shed", func(e *flowtable.Event) {
			e.State, e.Ended = flowtable.SynSeen, flowtable.EndTimeout+flowtable.End(flowtable.ShedHalfOpen)
		}, func(r *Record) { r.State, r.Closed, r.Why = "SYN_SENT", "", "shed_half_open" }},
		{"with traffic", func(e *flowtable.Event) {
			e.Counted = true
			e.Traffic = [2]flowtable.Traffic{{Packets: 1, Bytes: 20}, {Packets: 300, Bytes: 4000}}
		}, func(r *Record) {
			r.Traffic = &status.FlowTraffic{ToBackend: 1, ToBackendBytes: 20, ToClient: 300, ToClientBytes: 4000}
		}},
		{"begin", func(e *flowtable.Event) { e.Begins = true }, func(r *Record) {
			r.Event, r.Start, r.LastPacket, r.State, r.Closed, r.Why = Begin, time.Time{}, time.Time{}, "", "", ""
		}},
		{"of an earlier process", func(e *flowtable.Event) { e.Service, e.Start = 0, 0 },
			func(r *Record) { r.Start = time.Time{} }},
		{"without a Service", func(e *flowtable.Event) { e.Service, e.Frontend = 9, socket("203.0.113.8:80") },
			func(r *Record) { r.Service, r.VIP = "", netip.MustParseAddrPort("203.0.113.8:80") }},
		{"IPv6 UDP", func(e *flowtable.Event) {
			e.Client, e.V6, e.Proto, e.State = socket("[2001:db8::7]:1"), true, header.ProtoUDP, flowtable.UDPAssured
		}, func(r *Record) {
			r.Client = netip.MustParseAddrPort("[2001:db8::7]:1")
			r.Protocol, r.State, r.Closed = "UDP", "UDP_ASSURED", ""
		}},
		{"direct return", func(e *flowtable.Event) {
			e.Backend, e.Source, e.BackendRef = e.Frontend, e.Client, uint32(services.MakeBackendRef(3, 1))
		}, func(r *Record) {
			r.SNAT, r.Backend, r.Forwarding = r.Client, netip.MustParseAddrPort("192.0.2.77:80"), "direct"
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, want := end, want
			tt.change(&e)
			tt.want(&want)
			line := code().event(nil, &e)
			var got Record
			d := json.NewDecoder(bytes.NewReader(line))
			d.DisallowUnknownFields()
			err := d.Decode(&got)
			if err != nil || !reflect.DeepEqual(got, want) || bytes.Count(line, []byte{'\n'}) != 1 {
				t.Errorf("%s: %v\ngot  %+v\nwant %+v", line, err, got, want)
			}
		})
	}
}

// world is a table with a log in a directory.
type world struct {
	t      *testing.T
	dir    string
	table  *flowtable.Table
	handle *flowtable.Handle
	log    *Log
	out    bytes.Buffer // messages
}

func newWorld(t *testing.T, maxBytes int64) *world {
	t.Helper()
	w := &world{t: t, dir: filepath.Join(t.TempDir(), "log")}
	var err error
	w.table, err = flowtable.NewHeap(flowtable.Config{IPv4Flows: 1 << 16, Timeouts: flowtable.DefaultTimeouts()})
	if err != nil {
		t.Fatal(err)
	}
	events, err := w.table.StartLog(1<<10, make([]byte, w.table.AccountBytes()), true)
	if err != nil {
		t.Fatal(err)
	}
	if w.handle, err = w.table.Register(); err != nil {
		t.Fatal(err)
	}
	h := new(services.Handle)
	h.Store(snapshot())
	w.log = New(Config{Directory: w.dir, MaxBytes: maxBytes, Events: events, Services: h,
		Log: slog.New(slog.NewTextHandler(&w.out, nil))})
	return w
}

// flows makes and ends n flows, whose source ports are from first on.
func (w *world) flows(first uint16, n int) {
	w.t.Helper()
	now := flowtable.Time(boottime.Nanos())
	w.handle.Enter(now)
	defer w.handle.Leave()
	for i := range uint16(n) {
		w.handle.Delete(w.create(now, first+i))
	}
}

func (w *world) create(now flowtable.Time, port uint16) flowtable.Ref {
	w.t.Helper()
	f := newFlow(port)
	r, s := w.handle.Create(now, &f)
	if s != flowtable.Created {
		w.t.Fatal(s)
	}
	return r
}

func newFlow(port uint16) flowtable.NewFlow {
	addr := func(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }
	return flowtable.NewFlow{
		Client: header.Tuple{Src: addr("198.51.100.7"), SrcPort: port, Dst: addr("203.0.113.9"), DstPort: 80,
			Proto: header.ProtoTCP},
		Backend: addr("10.0.1.12"), BackendPort: 8080, Source: addr("10.0.0.1"), SourcePort: port, Service: 1,
	}
}

// records reads all files.
func (w *world) records() (all []Record) {
	w.t.Helper()
	if w.log.files.compressing != nil {
		<-w.log.files.compressing
	}
	names, err := list(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, name := range names {
		in, err := openRead(w.dir, name)
		if err != nil {
			w.t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := b.ReadFrom(in); err != nil {
			w.t.Fatal(err)
		}
		in.Close()
		for line := range bytes.Lines(b.Bytes()) {
			var r Record
			if json.Unmarshal(line, &r) == nil {
				all = append(all, r)
			}
		}
	}
	return all
}

// count counts the begins and ends.
func (w *world) count() (begins, ends int) {
	for _, r := range w.records() {
		switch r.Event {
		case Begin:
			begins++
		case End:
			ends++
		}
	}
	return begins, ends
}

// TestEndsOfDirectFlows: how a client closed a connection of which the gateway sees only its side.
// A translated association whose client has sent a SHUTDOWN is reset if it is aborted then.
func TestEndsOfDirectFlows(t *testing.T) {
	const ack, fin, rst, data = header.TCPACK, header.TCPFIN | header.TCPACK, header.TCPRST, 1 << 7 // with payload
	for _, tt := range []struct {
		name       string
		translated bool
		packets    []uint8 // of the client, after a SYN
		closed     string
	}{
		{"FIN", false, []uint8{ack, fin}, "fin_client"},
		{"FIN before an ACK", false, []uint8{fin}, "fin_client"},
		{"ACK after FIN", false, []uint8{ack, fin, ack}, "fin_client"},
		{"data after FIN", false, []uint8{ack, fin, ack | data}, ""},
		{"RST after FIN", false, []uint8{ack, fin, rst}, "rst_client"},
		{"RST", false, []uint8{ack, rst}, "rst_client"},
		{"idle", false, []uint8{ack}, ""},
		{"translated", true, []uint8{ack, fin, rst}, "rst_client"},
	} {
		for _, proto := range []uint8{header.ProtoTCP, header.ProtoSCTP} {
			w := newWorld(t, 40_000)
			now := flowtable.Time(boottime.Nanos())
			f := newFlow(7)
			if f.Client.Proto = proto; !tt.translated {
				f.MakeDirect(&f.Backend, false)
			}
			w.handle.Enter(now)
			ref, status := w.handle.Create(now, &f)
			if status != flowtable.Created {
				t.Fatal(status)
			}
			if tt.translated {
				w.handle.Observe(ref, flowtable.ReplySide, flowtable.Segment{Flags: header.TCPSYN | ack}, now)
			}
			for _, flags := range tt.packets {
				s := flowtable.Segment{Flags: flags &^ data, Data: flags&data != 0}
				if tt.translated {
					w.handle.Observe(ref, flowtable.ClientSide, s, now)
				} else {
					w.handle.ObserveOneSided(ref, s, now)
				}
			}
			for w.table.Counts().Live[0] > 0 {
				w.handle.Sweep(now+flowtable.Time(24*time.Hour), 1<<20)
			}
			w.handle.Leave()
			w.log.drain()
			list := w.records()
			if last := list[len(list)-1]; last.Event != End || last.Closed != tt.closed {
				t.Errorf("%s, protocol %d: %+v, want closed %q", tt.name, proto, last, tt.closed)
			}
		}
	}
}

// TestRotation: files are bounded in size and number, old ones are compressed, and no line between
// the oldest file that is kept and now is missing.
func TestRotation(t *testing.T) {
	w := newWorld(t, 40_000)
	const rounds = 250
	for round := range uint16(rounds) {
		w.flows(1000+10*round, 10)
		w.log.drain()
		if w.log.files.compressing != nil {
			<-w.log.files.compressing
		}
		time.Sleep(2 * time.Microsecond) // names are of microseconds
	}
	names, err := list(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for i, name := range names {
		info, err := os.Stat(filepath.Join(w.dir, name))
		if err != nil || info.Size() > 30_000 || strings.HasSuffix(name, compressed) != (i < len(names)-2) ||
			info.Mode().Perm() != 0o600 {
			t.Fatalf("%s: %v, %d bytes, %v", name, err, info.Size(), info.Mode())
		}
		total += info.Size()
	}
	if total > 50_000 || total < 30_000 || len(w.records()) == 2*10*rounds+1 {
		t.Errorf("%d bytes in %d files of %d records", total, len(names), len(w.records()))
	}
	list := w.records()
	last := 0
	for _, r := range list {
		if r.Event == End {
			if port := int(r.SNAT.Port()); last != 0 && port != last+1 {
				t.Errorf("port %d follows %d", port, last)
			} else {
				last = port
			}
		}
	}
	if n := w.log.Counts(); n.Written != 20*rounds || n.Lost != 0 || last != 1000+10*rounds-1 {
		t.Errorf("%+v, last port %d", n, last)
	}
}

// TestClockStepsBack: after the wall clock has stepped back, lines still go to the newest file, and
// only the oldest are removed. A file that somebody has put there is left alone.
func TestClockStepsBack(t *testing.T) {
	dir := t.TempDir()
	foreign := filepath.Join(dir, prefix+"zz"+plain)
	if err := os.WriteFile(foreign, []byte("a copy\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := files{directory: dir, size: 1000, max: 10_000}
	line := func(n int) []byte { return fmt.Appendf(nil, "%0499d\n", n) }
	const lines = 60
	now := t0
	for n := range lines {
		if n == lines/2 {
			now = t0.Add(-8 * time.Hour)
		}
		if _, err := f.write(line(n), now); err != nil {
			t.Fatal(err)
		}
		if f.compressing != nil {
			<-f.compressing
		}
		now = now.Add(time.Second)
	}
	f.close()
	names, err := logFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, name := range names {
		in, err := openRead(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		in.Close()
		all = append(all, text...)
	}
	if kept := len(all) / 500; kept < 2*lines/3 || !bytes.HasSuffix(all, line(lines-1)) {
		t.Errorf("%d of %d lines are kept in %v, the last is not the newest", kept, lines, names)
	}
	for at := 0; at < len(all); at += 500 {
		if n := lines - (len(all)-at)/500; !bytes.Equal(all[at:at+500], line(n)) {
			t.Fatalf("line %d is not where it was written, in %v", n, names)
		}
	}
	if text, err := os.ReadFile(foreign); err != nil || string(text) != "a copy\n" {
		t.Errorf("the file of somebody else: %q, %v", text, err)
	}
}

// TestContinues: the next process continues the newest file, after part of a line that a killed one
// has left.
func TestContinues(t *testing.T) {
	w := newWorld(t, 1e7)
	w.flows(1000, 3)
	w.log.drain()
	w.log.files.close()
	names, _ := list(w.dir)
	f, err := os.OpenFile(filepath.Join(w.dir, names[0]), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"time":"2026-11-29T12:00:00.0`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	next := newWorld(t, 1e7)
	next.dir, next.log.files.directory = w.dir, w.dir
	next.flows(1010, 3)
	next.log.drain()
	if b, e := next.count(); b != 6 || e != 6 {
		t.Errorf("%d begins, %d ends", b, e)
	}
	if names, _ := list(w.dir); len(names) != 1 {
		t.Errorf("files %v", names)
	}
}

// TestUnwritable: lines that cannot be written are counted, the log says so once and again when it
// can be written, and the file names the gap.
func TestUnwritable(t *testing.T) {
	w := newWorld(t, 1e7)
	if err := os.WriteFile(w.dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		w.flows(1000, 4)
		w.log.drain()
	}
	if n := w.log.Counts(); n.Lost != 24 || n.Written != 0 || !strings.Contains(w.log.Problem(), "24 lines are lost") {
		t.Errorf("%+v: %s", n, w.log.Problem())
	}
	if err := os.Remove(w.dir); err != nil {
		t.Fatal(err)
	}
	w.log.retry = time.Time{}
	w.flows(1000, 4)
	w.log.drain()
	b, e := w.count()
	if n := w.log.Counts(); b != 4 || e != 4 || n.Written != 8 || n.Lost != 24 {
		t.Errorf("%d begins, %d ends, %+v", b, e, n)
	}
	lost := slices.IndexFunc(w.records(), func(r Record) bool { return r.Event == Lost && r.Lines == 24 })
	if lost < 0 || !strings.Contains(w.log.Problem(), "24 lines of the flow log are lost") {
		t.Errorf("%+v, %s", w.records(), w.log.Problem())
	}
	if n := strings.Count(w.out.String(), "cannot be written"); n != 1 || !strings.Contains(w.out.String(), "again") {
		t.Error(w.out.String())
	}
}

// TestHangs: a write that does not end is a problem before a line is lost.
func TestHangs(t *testing.T) {
	w := newWorld(t, 1e7)
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w.log.files.out = out
	w.flows(1000, 300) // more than a pipe has room for
	done := make(chan struct{})
	go func() { defer close(done); w.log.drain() }()
	hangs := func() bool {
		w.log.mu.Lock()
		defer w.log.mu.Unlock()
		if w.log.began.IsZero() {
			return false
		}
		w.log.began = w.log.began.Add(-hangAfter)
		return true
	}
	for end := time.Now().Add(10 * time.Second); !hangs() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond) // a short write has ended by now
	if !hangs() || !strings.Contains(w.log.Problem(), "the flow log hangs") || w.log.Counts().Lost != 0 {
		t.Errorf("problem %q, %+v", w.log.Problem(), w.log.Counts())
	}
	in.Close()
	<-done
	if why := w.log.Problem(); strings.Contains(why, "hangs") || why == "" {
		t.Errorf("after the write has failed: %q", why)
	}
}

// TestLosesEvents: events without room in a ring count as lost.
func TestLosesEvents(t *testing.T) {
	w := newWorld(t, 1e7)
	w.flows(1000, 600) // 1200 events in a ring of 1024
	w.log.drain()
	w.log.drain()
	if n := w.log.Counts(); n.Lost != 176 || n.Written != 1024 {
		t.Errorf("%+v", n)
	}
}

// TestCompressionEnds: compress stops when the log ends, and leaves the file as it was.
func TestCompressionEnds(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, prefix+"1"+plain)
	if err := os.WriteFile(path, []byte("a line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var ending atomic.Bool
	ending.Store(true)
	if err := compress(path, &ending); !errors.Is(err, errEnding) {
		t.Errorf("got %v", err)
	}
	if found, err := os.ReadDir(dir); err != nil || len(found) != 1 || found[0].Name() != filepath.Base(path) {
		t.Errorf("%v, %v", found, err)
	}
}

// TestRunEnds: Run writes the last events, and waits for no compression.
func TestRunEnds(t *testing.T) {
	w := newWorld(t, 1e7)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	w.flows(1000, 5)
	w.log.files.compressing = make(chan struct{}) // for ever
	w.log.Run(ctx)
	w.log.files.compressing = nil
	if b, e := w.count(); b != 5 || e != 5 {
		t.Errorf("%d begins, %d ends", b, e)
	}
}

// TestAccounts: the memory outlives a process, and is empty if it is for another table.
func TestAccounts(t *testing.T) {
	path := filepath.Join(t.TempDir(), AccountsFile)
	for i, tt := range []struct {
		size   int64
		first  byte // that is found
		remove bool
		left   int
	}{{8192, 0, false, 1}, {8192, 7, false, 1}, {4096, 0, false, 1}, {4096, 7, true, 0}, {4096, 0, false, 1}} {
		a, err := OpenAccounts(path, tt.size)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(a.Memory())) != tt.size || a.Memory()[0] != tt.first {
			t.Errorf("%d: %d bytes, the first is %d", i, len(a.Memory()), a.Memory()[0])
		}
		a.Memory()[0] = 7
		if err := a.Close(tt.remove); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob(path); len(left) != tt.left {
			t.Errorf("%d: %v", i, left)
		}
	}
	if err := statefile.Remove(path); err != nil {
		t.Error(err)
	}
	if err := statefile.Remove(path); err != nil {
		t.Error(err)
	}
}

// BenchmarkEvent measures the line of one event.
func BenchmarkEvent(b *testing.B) {
	e := flowtable.Event{
		At: 3e9, Start: 1e9, Client: socket("198.51.100.7:40000"), Frontend: socket("203.0.113.9:80"),
		Source: socket("10.0.0.1:21360"), Backend: socket("10.0.1.12:8080"), Service: 1, Seen: 25,
		Proto: header.ProtoTCP, State: flowtable.TimeWaitBackend,
	}
	c := code()
	var line []byte
	for b.Loop() {
		line = c.event(line[:0], &e)
	}
	b.SetBytes(int64(len(line)))
}
