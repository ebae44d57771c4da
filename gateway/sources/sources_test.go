package sources

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/statefile"
)

// node is a gateway's machine.
type node struct {
	t            *testing.T
	disk, memory string
	own, others  []netip.Addr
	now          time.Time
}

func newNode(t *testing.T) *node {
	n := &node{t: t, disk: filepath.Join(t.TempDir(), "disk"), memory: t.TempDir(),
		now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	for _, a := range []string{"198.51.100.1", "2001:db8::1", "198.51.100.2", "2001:db8::2"} {
		n.own = append(n.own, netip.MustParseAddr(a))
	}
	return n
}

// start starts a process.
func (n *node) start(kept bool) *Sources {
	n.t.Helper()
	s, err := Start(Config{Log: slog.New(slog.DiscardHandler), Disk: n.disk, Memory: n.memory, Own: n.own, Kept: kept,
		Others: n.others, Now: n.now})
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

// dissolve starts a process without a group.
func (n *node) dissolve() ([]netip.Addr, error) {
	return Dissolve(slog.New(slog.DiscardHandler), n.memory)
}

// want compares the states of IPv4, and those of IPv6, which are the same.
func (n *node) want(s *Sources, when string, first, second State) {
	n.t.Helper()
	want := []SourceAddress{{n.own[0], first}, {n.own[2], second}, {n.own[1], first}, {n.own[3], second}}
	if got := s.Addresses(); !slices.Equal(got, want) {
		n.t.Errorf("%s: %v, want %v", when, got, want)
	}
	a4, any4 := s.OpenAddress(false)
	a6, any6 := s.OpenAddress(true)
	open := slices.Index([]State{first, second}, Open)
	if any4 != (open >= 0) || any6 != any4 || any4 && (a4 != n.own[2*open] || a6 != n.own[2*open+1]) {
		n.t.Errorf("%s: open are %v %v", when, a4, a6)
	}
}

func (n *node) reach(s *Sources, used ...netip.Addr) (opened bool) {
	n.t.Helper()
	opened, err := s.AllReached(func(a netip.Addr) bool { return slices.Contains(used, a) })
	if err != nil {
		n.t.Fatal(err)
	}
	return opened
}

// TestVoid: after a removal from the group no address is open, and the incarnation goes on.
func TestVoid(t *testing.T) {
	n := newNode(t)
	if err := Void(n.disk); err != nil {
		t.Errorf("without a file: %v", err)
	}
	s := n.start(false)
	n.reach(s)
	before, _ := s.Incarnation()
	if err := Void(n.disk); err != nil {
		t.Fatal(err)
	}
	n.now = n.now.Add(-time.Hour)
	s = n.start(false)
	n.want(s, "after a removal", Closed, Closed)
	if after, _ := s.Incarnation(); after <= before {
		t.Errorf("incarnation %d after %d", after, before)
	}
}

// TestNotedInThisBoot: a file of an earlier boot says nothing about the flow table.
func TestNotedInThisBoot(t *testing.T) {
	n := newNode(t)
	n.start(false)
	if !Noted(n.memory) {
		t.Error("in the same boot")
	}
	var table inMemory
	file := filepath.Join(n.memory, Name)
	if err := statefile.Load(file, version, &table); err != nil {
		t.Fatal(err)
	}
	for boot, want := range map[string]bool{"": true, "an earlier one": false} {
		table.Boot = boot
		if err := statefile.Save(file, &table); err != nil {
			t.Fatal(err)
		}
		if got := Noted(n.memory); got != want {
			t.Errorf("boot %q: %t, want %t", boot, got, want)
		}
	}
}

// TestLife follows a gateway from its first start.
func TestLife(t *testing.T) {
	n := newNode(t)
	s := n.start(false)
	n.want(s, "a new gateway", Closed, Closed)
	first, kept := s.Incarnation()
	if kept || first == 0 {
		t.Errorf("incarnation %d, kept %v", first, kept)
	}
	if !n.reach(s) {
		t.Error("no address was opened")
	}
	n.want(s, "all others are reached", Open, Spare)
	if n.reach(s) {
		t.Error("an address was opened twice")
	}

	s = n.start(true)
	n.want(s, "a crash", Open, Spare)
	if again, kept := s.Incarnation(); !kept || again != first {
		t.Errorf("after a crash incarnation %d, kept %v, want %d", again, kept, first)
	}
	n.now = n.now.Add(-time.Hour) // a clock that was set back
	s = n.start(false)
	n.want(s, "a loss of memory", Closed, Open)
	second, kept := s.Incarnation()
	if kept || second <= first {
		t.Errorf("after a loss of memory incarnation %d, kept %v, before %d", second, kept, first)
	}
	n.want(n.start(true), "a crash after it", Closed, Open)
	n.want(n.start(false), "a second loss of memory", Closed, Closed)
	s = n.start(true)
	n.reach(s, n.own...)
	n.want(s, "all others are reached, and both addresses are in use", Open, Closed)
	n.reach(s)
	n.want(s, "the last flow of the other address has ended", Open, Spare)
	n.want(n.start(true), "and a crash", Open, Spare)
}

// TestReachingBlocksNobody: while AllReached reads the flow table, the other methods answer. The
// goroutine that exchanges flows calls them, and a table is paused while that goroutine is paused.
func TestReachingBlocksNobody(t *testing.T) {
	n := newNode(t)
	s := n.start(false)
	opened, err := s.AllReached(func(netip.Addr) bool {
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			s.Addresses()
			s.OpenAddress(false)
		}()
		select {
		case <-answered:
		case <-time.After(5 * time.Second):
			t.Error("no answer while the table is read")
		}
		return false
	})
	if err != nil || !opened {
		t.Errorf("opened %v, %v", opened, err)
	}
	n.want(s, "all others are reached", Open, Spare)
}

// TestAnotherTable: the flow table is kept, and is not the one of the incarnation on the disk.
func TestAnotherTable(t *testing.T) {
	for name, change := range map[string]func(n *node) error{
		"a process without a group": func(n *node) error {
			former, err := n.dissolve()
			if again, _ := n.dissolve(); !slices.Equal(former, n.own) || !slices.Equal(again, n.own) {
				t.Errorf("the group had %v, a later process finds %v, want %v", former, again, n.own)
			}
			return err
		},
		"no file": func(n *node) error { return Forget(n.memory) },
		"a disk of another machine": func(n *node) error {
			other := *n
			other.memory, other.now = t.TempDir(), n.now.Add(time.Hour)
			return errOf(Start(Config{Log: slog.New(slog.DiscardHandler), Disk: n.disk, Memory: other.memory,
				Own: n.own, Now: other.now}))
		},
		"a reboot that left it on a disk": func(n *node) error {
			boot, err := statefile.Boot()
			if err != nil {
				return err
			}
			file := filepath.Join(n.memory, Name)
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			return os.WriteFile(file, bytes.Replace(text, []byte(boot), []byte("another"), 1), 0o600)
		},
		"an unreadable file beside it": func(n *node) error {
			return os.WriteFile(filepath.Join(n.memory, Name), []byte("{"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			s := n.start(false)
			n.reach(s)
			if err := change(n); err != nil {
				t.Fatal(err)
			}
			if _, kept := n.start(true).Incarnation(); kept {
				t.Error("the table counts as that of this incarnation")
			}
		})
	}
}

func errOf(_ *Sources, err error) error { return err }

// TestNoDisk: without the file on the disk, or with one that cannot be used, nothing is open, and
// the incarnation is higher nevertheless.
func TestNoDisk(t *testing.T) {
	for name, change := range map[string]func(file string) error{
		"lost":  os.Remove,
		"empty": func(file string) error { return os.WriteFile(file, nil, 0o600) },
		"of another version": func(file string) error {
			return os.WriteFile(file, []byte(`{"version":9,"incarnation":1}`), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			s := n.start(false)
			n.reach(s)
			before, _ := s.Incarnation()
			if err := change(filepath.Join(n.disk, Name)); err != nil {
				t.Fatal(err)
			}
			n.now = n.now.Add(time.Second)
			s = n.start(true)
			n.want(s, "the start after it", Closed, Closed)
			if after, kept := s.Incarnation(); kept || after <= before {
				t.Errorf("incarnation %d, kept %v, before %d", after, kept, before)
			}
		})
	}
	n := newNode(t)
	n.disk = "/proc/none"
	if _, err := Start(Config{Log: slog.New(slog.DiscardHandler), Disk: n.disk, Memory: n.memory, Own: n.own,
		Now: n.now}); err == nil || !strings.HasPrefix(err.Error(), "group.stateDir: ") {
		t.Errorf("a directory that cannot be made: %v", err)
	}
}

// TestOtherAddresses: an address that the file does not have is closed until all are reached.
func TestOtherAddresses(t *testing.T) {
	n := newNode(t)
	n.reach(n.start(false))
	n.own[0] = netip.MustParseAddr("198.51.100.9")
	s := n.start(true)
	want := []SourceAddress{{n.own[0], Closed}, {n.own[2], Spare}, {n.own[1], Open}, {n.own[3], Spare}}
	if got := s.Addresses(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	n.own[0], n.own[2] = n.own[2], n.own[0] // an order is no state
	s = n.start(true)
	if a, open := s.OpenAddress(false); open {
		t.Errorf("%v is open", a)
	}
}

// TestSaveFails: a state that is not on the disk is not used.
func TestSaveFails(t *testing.T) {
	n := newNode(t)
	s := n.start(false)
	if err := os.RemoveAll(n.disk); err != nil {
		t.Fatal(err)
	}
	if opened, err := s.AllReached(func(netip.Addr) bool { return false }); opened || err == nil {
		t.Errorf("opened %v, error %v", opened, err)
	}
	n.want(s, "not saved", Closed, Closed)
}

// TestOrder: the owner is first, the order does not depend on the list's, and each other gateway is
// second for some owners.
func TestOrder(t *testing.T) {
	second := map[int]int{}
	for i := range 200 {
		owner, others := fmt.Sprintf("gw-%d", i), []string{"gw-a", "gw-b", "gw-d"}
		gateways := append([]string{owner}, others...)
		reversed := slices.Clone(gateways)
		slices.Reverse(reversed)
		o := Order(owner, gateways)
		if o[0] != owner || len(o) != 4 || !slices.Equal(o, Order(owner, reversed)) {
			t.Fatalf("order of %s: %v, and by another list %v", owner, o, Order(owner, reversed))
		}
		second[slices.Index(others, o[1])]++
		// Without a gateway, the others keep their order.
		rest := slices.DeleteFunc(slices.Clone(o), func(g string) bool { return g == o[1] })
		if got := Order(owner, rest); !slices.Equal(got, rest) {
			t.Fatalf("without %s the order is %v, want %v", o[1], got, rest)
		}
	}
	for i := range 3 {
		if second[i] < 40 {
			t.Errorf("gateway %d is second for %d of 200 owners", i, second[i])
		}
	}
}

// TestHash: the same gateways with the same addresses have one hash, all others another.
func TestHash(t *testing.T) {
	of := func(name string, addresses ...string) Owner {
		o := Owner{Name: name}
		for _, a := range addresses {
			o.Addresses = append(o.Addresses, netip.MustParseAddr(a))
		}
		return o
	}
	a, b := of("gw-a", "198.51.100.1", "198.51.100.2"), of("gw-b", "198.51.100.3", "198.51.100.4")
	if Hash(a, b) != Hash(of("gw-b", "198.51.100.4", "198.51.100.3"), of("gw-a", "198.51.100.2", "198.51.100.1")) {
		t.Error("the hash depends on an order")
	}
	seen := map[uint64]string{Hash(a, b): "the same list"}
	for name, h := range map[string]uint64{
		"another name":    Hash(a, of("gw-c", "198.51.100.3", "198.51.100.4")),
		"another address": Hash(a, of("gw-b", "198.51.100.3", "198.51.100.5")),
		"an address that moved": Hash(of("gw-a", "198.51.100.1", "198.51.100.3"),
			of("gw-b", "198.51.100.2", "198.51.100.4")),
		"addresses that were swapped": Hash(of("gw-a", "198.51.100.3", "198.51.100.4"),
			of("gw-b", "198.51.100.1", "198.51.100.2")),
	} {
		if other, twice := seen[h]; twice {
			t.Errorf("%s has the hash of %s", name, other)
		}
		seen[h] = name
	}
}

// TestFormer: a gateway knows the source addresses that it had before, also without a group in
// between.
func TestFormer(t *testing.T) {
	n := newNode(t)
	n.start(false)
	before := slices.Clone(n.own)
	n.own[0] = netip.MustParseAddr("198.51.100.9")
	for range 2 {
		if got := n.start(true).Former(); !slices.Equal(got, before[:1]) {
			t.Errorf("former are %v, want %v", got, before[:1])
		}
		if got, err := n.dissolve(); err != nil || !slices.Equal(got, append(n.own, before[0])) {
			t.Errorf("without a group %v, %v", got, err)
		}
	}
	n.own[0], n.own[2] = before[0], netip.MustParseAddr("198.51.100.10")
	if got := n.start(true).Former(); len(got) != 2 || slices.Contains(got, before[0]) {
		t.Errorf("former are %v, want two, without %v", got, before[0])
	}
}

// TestFormerOfAnother: an address that another gateway has, or that no flow has any more, is not
// this gateway's, also when there is no group any more.
func TestFormerOfAnother(t *testing.T) {
	n := newNode(t)
	n.start(false)
	before := n.own
	n.own = nil
	for i := range before {
		n.own = append(n.own, netip.MustParseAddr(fmt.Sprintf("198.51.100.%d", 10+i)))
	}
	n.own[1], n.own[3] = netip.MustParseAddr("2001:db8::10"), netip.MustParseAddr("2001:db8::11")
	n.others = before[:2]
	if got := n.start(true).Former(); !slices.Equal(got, before[2:]) {
		t.Errorf("former are %v, want %v", got, before[2:])
	}
	n.others = nil
	if got := n.start(true).Former(); !slices.Equal(got, before[2:]) {
		t.Errorf("later former are %v, want %v", got, before[2:])
	}
	if err := Drop(n.memory, before[2:3]); err != nil {
		t.Fatal(err)
	}
	if got := n.start(true); !slices.Equal(got.Former(), before[3:]) || !got.kept {
		t.Errorf("after the last flow of one former are %v, kept %t, want %v", got.Former(), got.kept, before[3:])
	}
	if got, err := n.dissolve(); err != nil || !slices.Equal(got, append(n.own, before[3])) {
		t.Errorf("without a group %v, %v", got, err)
	}
	if err := Drop(n.memory, append(n.own, before[3])); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(n.memory, Name)); !os.IsNotExist(err) {
		t.Errorf("a file without addresses: %v", err)
	}
}

// TestDissolveUnreadable: the log says that former addresses are not known.
func TestDissolveUnreadable(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, Name), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	got, err := Dissolve(slog.New(slog.NewTextHandler(&out, nil)), dir)
	if len(got) > 0 || err != nil || !strings.Contains(out.String(), "source addresses that this gateway had") {
		t.Errorf("%v, %v, log %q", got, err, out.String())
	}
}
