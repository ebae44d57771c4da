package denials

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/internal/statefile"
	"sluice.dev/sluice/xdpprog"
)

// gateway is a kernel program and a flow table with flows of some clients.
type gateway struct {
	mu      sync.Mutex
	list    map[netip.Prefix]xdpprog.Denial
	sets    int // changes of list
	err     error
	clients []netip.Addr // of flows
}

func (g *gateway) SetDenied(list []xdpprog.Denial) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return g.err
	}
	next := map[netip.Prefix]xdpprog.Denial{}
	for _, d := range list {
		next[d.Prefix] = d
	}
	if !maps.Equal(next, g.list) {
		g.sets++
	}
	g.list = next
	return nil
}

func (g *gateway) Denied() (map[netip.Prefix]uint64, error) {
	return map[netip.Prefix]uint64{prefix("198.51.100.0/24"): 7}, nil
}

func (g *gateway) DeleteClients(_ context.Context, match func(netip.Addr) bool) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := len(g.clients)
	g.clients = slices.DeleteFunc(g.clients, match)
	return before - len(g.clients), nil
}

// begin begins a flow of each client.
func (g *gateway) begin(clients ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range clients {
		g.clients = append(g.clients, netip.MustParseAddr(c))
	}
}

func (g *gateway) changes() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sets
}

// state returns the denied prefixes, and the number of flows.
func (g *gateway) state() (denied string, flows int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []string
	for p := range g.list {
		list = append(list, p.String())
	}
	slices.Sort(list)
	return strings.Join(list, " "), len(g.clients)
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func (g *gateway) config(dir string) Config {
	return Config{Log: slog.New(slog.DiscardHandler), StateDir: dir, Program: g, Flows: g,
		Saves: func(save func() error) error { return save() },
		Clock: func() (uint64, time.Time) {
			now := time.Now()
			return uint64(now.UnixNano()) - 5e17, now
		}}
}

// start makes a list and runs it until the test, or end, ends.
func start(t *testing.T, c Config, configured ...string) (l *List, end func()) {
	t.Helper()
	var list []netip.Prefix
	for _, p := range configured {
		list = append(list, prefix(p))
	}
	l = New(c, list)
	if err := l.Apply(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx, nil) }()
	end = func() { cancel(); <-done }
	t.Cleanup(end)
	synctest.Wait()
	return l, end
}

// TestList: entries of both origins, flows that end with them and shortly after, ends by the clock,
// and what the next process finds.
func TestList(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := &gateway{}
		want := func(when, denied string, flows int) {
			t.Helper()
			synctest.Wait()
			if d, n := g.state(); d != denied || n != flows {
				t.Errorf("%s: denied %q and %d flows, want %q and %d", when, d, n, denied, flows)
			}
		}
		g.begin("203.0.113.9", "198.51.100.7", "198.51.100.8", "192.0.2.1", "2001:db8::1")
		l, end := start(t, g.config(dir), "203.0.113.0/24")
		time.Sleep(settleTime + time.Second)
		want("configured", "203.0.113.0/24", 4)
		if n, err := l.Deny(t.Context(), prefix("198.51.100.0/24"), time.Hour); n != 2 || err != nil {
			t.Errorf("%d flows ended, want 2: %v", n, err)
		}
		g.begin("198.51.100.7")
		want("a packet was on its way", "198.51.100.0/24 203.0.113.0/24", 3)
		time.Sleep(settleTime + time.Second)
		want("settled", "198.51.100.0/24 203.0.113.0/24", 2)
		if _, err := l.Deny(t.Context(), prefix("2001:db8::/32"), 0); err != nil {
			t.Error(err)
		}
		views, err := l.Views()
		if err != nil || len(views) != 3 || views[0].Packets != 7 || views[0].Until.IsZero() ||
			views[1].From != "configuration" || !views[2].Until.IsZero() {
			t.Errorf("%+v, %v", views, err)
		}
		end()

		l, end = start(t, g.config(dir))
		want("the next process", "198.51.100.0/24 2001:db8::/32", 1)
		sets := g.changes()
		time.Sleep(30 * time.Minute)
		if synctest.Wait(); g.changes() != sets {
			t.Errorf("%d changes of the kernel program's list, and nothing happened", g.changes()-sets)
		}
		for client, by := range map[string]string{"198.51.100.7": "198.51.100.0/24", "2001:db8::1": "2001:db8::/32",
			"192.0.2.1": ""} {
			if v := l.Denies(netip.MustParseAddr(client)); by == "" && v != nil || by != "" && (v == nil ||
				v.Client.String() != by) {
				t.Errorf("%s is denied by %+v, want %q", client, v, by)
			}
		}
		time.Sleep(30*time.Minute + time.Second)
		want("its time is over", "2001:db8::/32", 1)
		l.Configure([]netip.Prefix{prefix("192.0.2.0/25")})
		want("another configuration", "192.0.2.0/25 2001:db8::/32", 0)
		if err := l.Allow(t.Context(), prefix("2001:db8::/32")); err != nil {
			t.Error(err)
		}
		want("removed", "192.0.2.0/25", 0)
		if err := l.Allow(t.Context(), prefix("192.0.2.0/25")); !errors.Is(err, ErrConfigured) {
			t.Errorf("remove a configured entry: %v", err)
		}
		if err := l.Allow(t.Context(), prefix("192.0.2.0/26")); !errors.Is(err, ErrNoEntry) {
			t.Errorf("remove an unknown entry: %v", err)
		}
		end()
		if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
			t.Errorf("files %v, %v: want none", files, err)
		}
	})
}

// TestRefusals: a change that cannot be saved, or has no room, changes nothing. One that the kernel
// program refuses is shown, and tried again.
func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := &gateway{}
		c := g.config(dir)
		offering := errors.New("offering")
		var refuse error
		c.Saves = func(save func() error) error {
			if refuse != nil {
				return refuse
			}
			return save()
		}
		l, _ := start(t, c)
		refuse = offering
		if _, err := l.Deny(t.Context(), prefix("192.0.2.1/32"), 0); !errors.Is(err, offering) {
			t.Errorf("during a hand-over: %v", err)
		}
		refuse = nil
		if denied, _ := g.state(); denied != "" || len(l.Conditions()) != 0 {
			t.Errorf("denied %q, conditions %v", denied, l.Conditions())
		}
		g.err = errors.New("no memory")
		if _, err := l.Deny(t.Context(), prefix("192.0.2.1/32"), 0); !errors.Is(err, g.err) {
			t.Errorf("the kernel program: %v", err)
		}
		if c := l.Conditions(); len(c) != 1 || c[0].Level != "fail" {
			t.Errorf("conditions %v", c)
		}
		g.mu.Lock()
		g.err = nil
		g.mu.Unlock()
		time.Sleep(retryEvery + time.Second)
		synctest.Wait()
		if denied, _ := g.state(); denied != "192.0.2.1/32" {
			t.Errorf("tried again: denied %q", denied)
		}
		if c := l.Conditions(); len(c) != 1 || c[0].Level != "ok" {
			t.Errorf("conditions %v", c)
		}
		for i := range config.MaxDenied - 1 {
			l.configured[netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}), 32)] = true
		}
		if _, err := l.Deny(t.Context(), prefix("192.0.2.2/32"), 0); !errors.Is(err, ErrFull) {
			t.Errorf("without room: %v", err)
		}
		if _, err := l.Deny(t.Context(), prefix("192.0.2.1/32"), time.Hour); err != nil {
			t.Errorf("an entry that is there, without room: %v", err)
		}
	})
}

// TestClockSteps: a step of the wall clock moves no end, in this process and in the next. After a
// boot an entry ends by the wall clock.
func TestClockSteps(t *testing.T) {
	for _, step := range []time.Duration{8 * time.Hour, -8 * time.Hour} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			g := &gateway{}
			var stepped, booted atomic.Int64
			c := g.config(dir)
			c.Clock = func() (uint64, time.Time) {
				now := time.Now()
				return uint64(now.UnixNano() - 5e17 - booted.Load()), now.Add(time.Duration(stepped.Load()))
			}
			denied := func(when, want string) {
				t.Helper()
				synctest.Wait()
				if d, _ := g.state(); d != want {
					t.Errorf("%v, %s: denied %q, want %q", step, when, d, want)
				}
			}
			l, end := start(t, c)
			if _, err := l.Deny(t.Context(), prefix("192.0.2.0/24"), time.Hour); err != nil {
				t.Fatal(err)
			}
			stepped.Store(int64(step))
			time.Sleep(2 * lookEvery)
			denied("after the step", "192.0.2.0/24")
			if v := l.Entry(prefix("192.0.2.0/24")); v == nil ||
				v.Until.Sub(time.Now().Add(step+58*time.Minute)).Abs() > time.Second {
				t.Errorf("%v: entry %+v", step, v)
			}
			end()
			_, end = start(t, c)
			denied("in the next process", "192.0.2.0/24")
			end()
			booted.Store(4e17)
			_, end = start(t, c)
			time.Sleep(57 * time.Minute)
			denied("after a boot", "192.0.2.0/24")
			time.Sleep(2 * time.Minute)
			denied("when its time is over", "")
			end()
		})
	}
}

// TestClockIsSetAfterABoot: the wall clock is wrong when the machine boots, and is set later: an
// entry of the file ends at its time by the right clock.
func TestClockIsSetAfterABoot(t *testing.T) {
	for _, wrong := range []time.Duration{-8 * time.Hour, 8 * time.Hour} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			g, booted := &gateway{}, time.Now().Add(-time.Hour)
			var off atomic.Int64
			c := g.config(dir)
			c.Clock = func() (uint64, time.Time) {
				return uint64(time.Since(booted)), time.Now().Add(time.Duration(off.Load()))
			}
			l, end := start(t, c)
			if _, err := l.Deny(t.Context(), prefix("192.0.2.0/24"), time.Hour); err != nil {
				t.Fatal(err)
			}
			end()
			booted = time.Now().Add(-20 * time.Second)
			off.Store(int64(wrong))
			_, end = start(t, c)
			time.Sleep(5 * time.Minute)
			off.Store(0)
			time.Sleep(50 * time.Minute)
			if d, _ := g.state(); d != "192.0.2.0/24" {
				t.Errorf("clock off by %v: denied %q after 55 minutes", wrong, d)
			}
			time.Sleep(10 * time.Minute)
			if d, _ := g.state(); d != "" {
				t.Errorf("clock off by %v: denied %q after 65 minutes", wrong, d)
			}
			end()
		})
	}
}

// TestUnsavedEnd: an entry that is over does not apply, while the file cannot be written. That is
// tried each retryEvery.
func TestUnsavedEnd(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		g := &gateway{}
		c := g.config(dir)
		full := errors.New("no space left on device")
		var isFull atomic.Bool
		var tries atomic.Int32
		c.Saves = func(save func() error) error {
			if tries.Add(1); isFull.Load() {
				return full
			}
			return save()
		}
		l, _ := start(t, c)
		if _, err := l.Deny(t.Context(), prefix("192.0.2.0/24"), time.Minute); err != nil {
			t.Fatal(err)
		}
		isFull.Store(true)
		tries.Store(0)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n, want := tries.Load(), int32(time.Minute/retryEvery)+1; n < want-1 || n > want {
			t.Errorf("%d tries in a minute, want %d", n, want)
		}
		if views, _ := l.Views(); len(views) != 0 {
			t.Errorf("entries %+v", views)
		}
		if d, _ := g.state(); d != "" {
			t.Errorf("denied %q", d)
		}
		if c := l.Conditions(); len(c) != 1 || c[0].Level != "warn" || !strings.Contains(c[0].Detail, full.Error()) {
			t.Errorf("conditions %+v", c)
		}
		isFull.Store(false)
		time.Sleep(2 * retryEvery)
		synctest.Wait()
		if files, err := os.ReadDir(dir); err != nil || len(files) != 0 || len(l.Conditions()) != 0 {
			t.Errorf("files %v, %v, conditions %+v", files, err, l.Conditions())
		}
	})
}

// TestDeniedAgain: an entry stays whose client the operator denies without an end while it is being
// removed because it is over.
func TestDeniedAgain(t *testing.T) {
	g, p := &gateway{}, prefix("192.0.2.0/24")
	c := g.config(t.TempDir())
	var l *List
	var tidied chan struct{}
	c.Saves = func(save func() error) error {
		if tidied == nil && len(l.operator) > 0 {
			tidied = make(chan struct{})
			go func() { defer close(tidied); l.removeExpired() }()
			time.Sleep(50 * time.Millisecond) // it waits for the change
		}
		return save()
	}
	l = New(c, nil)
	for _, after := range []time.Duration{time.Nanosecond, 0} {
		if _, err := l.Deny(t.Context(), p, after); err != nil {
			t.Fatal(err)
		}
	}
	<-tidied
	if v := l.Entry(p); v == nil || !v.Until.IsZero() {
		t.Errorf("entry %+v", v)
	}
}

// TestEntry: the entry of a prefix is not the longest one that matches its first address.
func TestEntry(t *testing.T) {
	l := New((&gateway{}).config(t.TempDir()), []netip.Prefix{prefix("10.1.0.0/16")})
	for _, p := range []string{"10.0.0.0/16", "10.0.0.0/8"} {
		if _, err := l.Deny(t.Context(), prefix(p), time.Hour); err != nil {
			t.Fatal(err)
		}
		if v := l.Entry(prefix(p)); v == nil || v.Client != prefix(p) || v.Until.IsZero() {
			t.Errorf("%s: %+v", p, v)
		}
	}
	if v := l.Entry(prefix("10.1.0.0/16")); v == nil || v.From != "configuration" {
		t.Errorf("%+v", v)
	}
	if v := l.Entry(prefix("10.0.0.0/9")); v != nil {
		t.Errorf("%+v", v)
	}
}

// TestPending: the list of a new configuration is not in force before the kernel program has it.
func TestPending(t *testing.T) {
	l := New((&gateway{}).config(t.TempDir()), nil)
	l.Configure([]netip.Prefix{prefix("192.0.2.0/25")})
	for _, level := range []string{"fail", "ok"} {
		if c := l.Conditions(); len(c) != 1 || c[0].Level != level {
			t.Errorf("conditions %v, want %s", c, level)
		}
		if err := l.Apply(); err != nil {
			t.Error(err)
		}
	}
}

// TestSavingBlocksNobody: while the file is written, which takes as long as the disk does, the
// status answers.
func TestSavingBlocksNobody(t *testing.T) {
	g := &gateway{}
	c := g.config(t.TempDir())
	var l *List
	c.Saves = func(save func() error) error {
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			l.Conditions()
			l.Denies(netip.MustParseAddr("192.0.2.1"))
		}()
		select {
		case <-answered:
		case <-time.After(5 * time.Second):
			t.Error("no answer while the list is saved")
		}
		return save()
	}
	l = New(c, nil)
	if _, err := l.Deny(t.Context(), prefix("192.0.2.1/32"), 0); err != nil {
		t.Error(err)
	}
}

// TestUnreadable: a file that is not ours is an error that names it, and the gateway starts without
// its entries, and says so until the list changes.
func TestUnreadable(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "10.0.0.1", "another version": `{"version": 2, "denied": []}`,
		"an unknown field": `{"version": 1, "denied": [], "allowed": []}`,
		"host bits":        `{"version": 1, "denied": [{"prefix": "10.0.0.1/8"}]}`,
		"all clients":      `{"version": 1, "denied": [{"prefix": "0.0.0.0/0"}]}`,
		"empty":            "",
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, Name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if list, err := load(dir); err == nil || !strings.Contains(err.Error(), path) || list != nil {
			t.Errorf("%s: %v, %v", name, list, err)
		}
		var log strings.Builder
		c := (&gateway{}).config(dir)
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		l := New(c, nil)
		if len(l.operator) != 0 || !strings.Contains(log.String(), "ERROR") {
			t.Errorf("%s: %v, log %s", name, l.operator, &log)
		}
		if c := l.Conditions(); len(c) != 1 || c[0].Level != "fail" || !strings.Contains(c[0].Detail, path) {
			t.Errorf("%s: conditions %v", name, c)
		}
		if _, err := l.Deny(t.Context(), prefix("192.0.2.1/32"), 0); err != nil {
			t.Error(err)
		}
		if c := l.Conditions(); len(c) != 1 || c[0].Level != "ok" {
			t.Errorf("%s: conditions after a change %v", name, c)
		}
	}
	dir := t.TempDir()
	saved := map[netip.Prefix]time.Time{prefix("10.0.0.0/8"): {}, prefix("2001:db8::1/128"): time.Unix(1e9, 0).UTC()}
	if err := save(dir, saved); err != nil {
		t.Fatal(err)
	}
	if list, err := load(dir); err != nil || !maps.Equal(list, saved) {
		t.Errorf("loaded %v, %v; saved %v", list, err, saved)
	}
	if err := save(dir, nil); err != nil {
		t.Error(err)
	}
	if err := statefile.Load(filepath.Join(dir, Name), version, &content{}); err != nil {
		t.Errorf("without entries: %v", err)
	}
}

// TestOneBound: the configuration, the list and the kernel program have room for the same number of
// entries.
func TestOneBound(t *testing.T) {
	if config.MaxDenied != xdpprog.MaxDenied {
		t.Errorf("%d entries of the configuration, %d of the kernel program", config.MaxDenied, xdpprog.MaxDenied)
	}
}
