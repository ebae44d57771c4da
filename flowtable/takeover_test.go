package flowtable

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/nat/header"
)

// TestAssume: a second table over the memory of the first continues where that stopped, with
// records in limbo, in magazines and fresh. It has the same flows, by both keys, the same counts,
// and can make and end others.
func TestAssume(t *testing.T) {
	c := Config{IPv4Flows: 3000, IPv6Flows: 1000, HalfOpen: 4000, Timeouts: DefaultTimeouts()}
	tb, h := testTableOf(t, c)
	other, err := tb.Register()
	if err != nil {
		t.Fatal(err)
	}
	other.Enter(bootTime) // keeps deleted records in limbo
	protos := []uint8{header.ProtoTCP, header.ProtoUDP, header.ProtoICMP}
	var flows []NewFlow
	for n := range uint32(1500) {
		f := newFlow(protos[n%3], n&1 == 1, n)
		r := h.mustCreate(t, bootTime, f)
		h.Bind(r, 3, f.Service, f.BackendRef, 1, 2)
		if n%3 == 0 && n%2 == 0 {
			h.Delete(r)
			continue
		}
		flows = append(flows, f)
	}
	next, err := Share(tb.mem, c)
	if err != nil {
		t.Fatal(err)
	}
	g, err := next.Register() // before Assume, as the daemon makes its workers
	if err != nil {
		t.Fatal(err)
	}
	h.Leave()
	other.Leave()
	before := tb.Counts()
	if err := next.Assume(used(t, tb), bootTime); err != nil {
		t.Fatal(err)
	}
	validate(t, next)
	after := next.Counts()
	if before.Live != after.Live || before.States != after.States {
		t.Errorf("%v live in states %v, before %v, %v", after.Live, after.States, before.Live, before.States)
	}
	if next.Incarnation() != 2 {
		t.Errorf("incarnation %d", next.Incarnation())
	}
	g.Enter(bootTime)
	for _, f := range flows {
		client := f.Client
		ref, side := g.Lookup(g.Hash(&client), &client, bootTime)
		if ref == 0 || side != ClientSide {
			t.Fatalf("%+v is not found", client)
		}
		reply := g.reply(ref)
		if again, side := g.Lookup(g.Hash(&reply), &reply, bootTime); again != ref || side != ReplySide {
			t.Fatalf("the reply of %+v is not found", client)
		}
		if service, backend := g.Flow(ref).Owner(); service != 0 || backend != 0 || g.Flow(ref).Binding() != 0 {
			t.Fatalf("%+v has numbers of the previous process", client)
		}
		g.Delete(ref)
	}
	for n := range uint32(1500) {
		g.mustCreate(t, bootTime, newFlow(header.ProtoUDP, n&1 == 1, 10_000+n))
	}
	g.Leave()
	validate(t, next)
}

func used(t testing.TB, tb *Table) [2]uint32 {
	t.Helper()
	n, err := tb.Used()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestUsedAtWork: Used fails while any handle is between Enter and Leave.
func TestUsedAtWork(t *testing.T) {
	tb, h := testTableOf(t, Config{IPv4Flows: 100, Timeouts: DefaultTimeouts()})
	other, err := tb.Register()
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []*Handle{h, other} {
		at.Enter(bootTime)
		if _, err := tb.Used(); err == nil {
			t.Errorf("handle %d is at work", at.id)
		}
		at.Leave()
	}
	other.Close()
	used(t, tb)
}

func TestAssumeRefuses(t *testing.T) {
	c := Config{IPv4Flows: 100, Timeouts: DefaultTimeouts()}
	tb, h := testTableOf(t, c)
	h.Leave()
	next, err := Share(tb.mem, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, used := range [][2]uint32{{1 << 20, 0}, {1, 1}} {
		if next.Fits(used) == nil || next.Assume(used, bootTime) == nil {
			t.Errorf("%d used records of a table of 100 flows", used)
		}
	}
	if err := next.Assume(used(t, tb), bootTime); err != nil {
		t.Errorf("a table of one family: %v", err)
	}
	c.IPv4Flows = 200
	if _, err := Share(tb.mem, c); err == nil {
		t.Error("shared with another size")
	}
}

// TestGoesOnWhereNothingIsTaken: a process pauses and shares the table with another process, which
// ends before Assume; the first process continues with a valid table.
func TestGoesOnWhereNothingIsTaken(t *testing.T) {
	c := Config{IPv4Flows: 3000, IPv6Flows: 1000, HalfOpen: 4000, Timeouts: DefaultTimeouts()}
	tb, h := testTableOf(t, c)
	made := func(from, to uint32) (refs []Ref) {
		for n := from; n < to; n++ {
			refs = append(refs, h.mustCreate(t, bootTime, newFlow(header.ProtoUDP, n&1 == 1, n)))
		}
		return refs
	}
	for _, r := range made(0, 1500)[:1000] {
		h.Delete(r)
	}
	h.Leave()
	next, err := Share(tb.mem, c)
	if err == nil {
		err = next.Fits(used(t, tb))
	}
	if err != nil {
		t.Fatal(err)
	}
	h.Enter(bootTime)
	for _, r := range made(2000, 3200)[:600] {
		h.Delete(r)
	}
	made(4000, 4600)
	h.Leave()
	validate(t, tb)
	if n := tb.Counts().Live; n != [2]uint64{850, 850} {
		t.Errorf("%d flows live, want 850 of each family", n)
	}
}

// TestTakeFile: the lock passes with the file, and ends when neither process has the file open.
func TestTakeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows")
	f := mustOpen(t, path, fileConfig)
	h, err := f.Table.Register()
	if err != nil {
		t.Fatal(err)
	}
	h.Enter(bootTime)
	n := newFlow(header.ProtoUDP, false, 1)
	h.mustCreate(t, bootTime, n)
	h.Leave()
	dup := func() *os.File {
		fd, err := unix.FcntlInt(uintptr(f.FD()), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fd), path)
	}
	larger := fileConfig
	larger.IPv4Flows *= 2
	if _, err := TakeFile(dup(), path, larger); !errors.Is(err, ErrLayout) {
		t.Errorf("a larger table: %v", err)
	}
	next, err := TakeFile(dup(), path, fileConfig)
	if err != nil {
		t.Fatal(err)
	}
	records := used(t, f.Table)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(path, fileConfig, bootTime, ResizeFit); !errors.Is(err, ErrInUse) {
		t.Errorf("opened while the next process has it: %v", err)
	}
	if err := next.Table.Assume(records, bootTime); err != nil {
		t.Fatal(err)
	}
	g, err := next.Table.Register()
	if err != nil {
		t.Fatal(err)
	}
	g.Enter(bootTime)
	if ref, _ := g.Lookup(g.Hash(&n.Client), &n.Client, bootTime); ref == 0 {
		t.Error("the flow is gone")
	}
	g.Leave()
	if err := next.Remove(); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkAssume(b *testing.B) {
	const n = 1_000_000
	tb, h, _ := benchTable(b, n, false)
	h.Leave()
	c := Config{IPv4Flows: n, Timeouts: DefaultTimeouts()}
	for b.Loop() {
		next, err := Share(tb.mem, c)
		if err == nil {
			err = next.Assume(used(b, tb), bootTime)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/assume")
}
