package flowtable

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/flowtable/mapped"
	"sluice.dev/sluice/nat/header"
)

var fileConfig = Config{IPv4Flows: 1000, IPv6Flows: 100, Timeouts: DefaultTimeouts()}

func mustOpen(t *testing.T, path string, c Config) *File {
	t.Helper()
	f, err := OpenFile(path, c, bootTime, ResizeFit)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFileKeepsFlows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows")
	f := mustOpen(t, path, fileConfig)
	if !f.Recovery.Fresh || f.Recovery.Why == "" {
		t.Errorf("a new file: %+v", f.Recovery)
	}
	h, err := f.Table.Register()
	if err != nil {
		t.Fatal(err)
	}
	h.Enter(bootTime)
	n := newFlow(header.ProtoUDP, false, 1)
	reply := h.reply(h.mustCreate(t, bootTime, n))
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	f = mustOpen(t, path, fileConfig)
	if f.Recovery != (Recovery{Recovered: 1}) {
		t.Errorf("opened again: %+v", f.Recovery)
	}
	if h, err = f.Table.Register(); err != nil {
		t.Fatal(err)
	}
	h.Enter(bootTime)
	if r, side := h.lookup(&reply, bootTime); r == 0 || side != ReplySide {
		t.Error("the flow is not found again")
	}
	validate(t, f.Table)
	if err := f.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Remove: %v", err)
	}
}

func TestFileOfAnotherVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows")
	f := mustOpen(t, path, fileConfig)
	f.Table.head.version++
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f = mustOpen(t, path, fileConfig)
	defer f.Close()
	if !f.Recovery.Fresh || !f.Recovery.Unread || !bytes.Contains([]byte(f.Recovery.Why), []byte("version")) {
		t.Errorf("%+v, want a fresh table because of the version", f.Recovery)
	}
}

// TestFileResized: flows move unchanged to a table of another size. If they do not fit, flows are
// lost only with ResizeForce.
func TestFileResized(t *testing.T) {
	const n = 600 // of each family
	from := Config{IPv4Flows: 1000, IPv6Flows: 1000, Timeouts: DefaultTimeouts(), HalfOpen: 4 * n}
	sized := func(v4, v6 uint32) Config {
		c := from
		c.IPv4Flows, c.IPv6Flows = v4, v6
		return c
	}
	for _, k := range []struct {
		name   string
		to     Config
		resize Resize
		want   [2]int // flows of each family after it
		kept   bool
	}{
		{"up", sized(100_000, 5000), ResizeFit, [2]int{n, n}, false},
		{"up and down", sized(2000, n), ResizeFit, [2]int{n, n}, false},
		{"down", sized(n, n), ResizeFit, [2]int{n, n}, false},
		{"down too far", sized(n, n-1), ResizeFit, [2]int{n, n}, true},
		{"a family less", sized(1000, 0), ResizeFit, [2]int{n, n}, true},
		{"down too far by force", sized(n, n/2), ResizeForce, [2]int{n, n / 2}, false},
		{"a family less by force", sized(1000, 0), ResizeForce, [2]int{n, 0}, false},
	} {
		t.Run(k.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "flows")
			f := mustOpen(t, path, from)
			flows, before := halfEstablished(t, f, n)
			incarnation := f.Table.Incarnation()
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			f, err := OpenFile(path, k.to, bootTime, k.resize)
			if err != nil {
				t.Fatal(err)
			}
			checkResized(t, f, flows, before, k.want)
			r, lost := f.Recovery, 2*n-k.want[0]-k.want[1]
			if r.Fresh || r.Kept != k.kept || r.Moved == k.kept || r.Lost != lost || r.Torn+r.Expired != 0 ||
				r.FoundFlows != [2]uint32{1000, 1000} {
				t.Errorf("%+v, want %d lost", r, lost)
			}
			if got := f.Table.Incarnation(); got != incarnation+1 {
				t.Errorf("incarnation %d after %d", got, incarnation)
			}
			inForce := k.to
			if k.kept {
				inForce = from
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			f = mustOpen(t, path, inForce) // the new file can be opened like any other
			checkResized(t, f, flows, before, k.want)
			if err := f.Remove(); err != nil {
				t.Fatal(err)
			}
			if left, _ := filepath.Glob(path + "*"); len(left) != 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// TestFileOfAKnownVersion: flows of another version are moved unchanged to a table of this version.
// If they do not fit in the configured size, the table keeps its former size.
func TestFileOfAKnownVersion(t *testing.T) {
	const n, other = 600, headVersion + 1 // flows of each family
	from := Config{IPv4Flows: 1000, IPv6Flows: 1000, Timeouts: DefaultTimeouts(), HalfOpen: 4 * n}
	larger, small := from, from
	larger.IPv4Flows, small.IPv4Flows = 5000, n-1
	// In the other version the numbers of two states are swapped, so the same function reads and
	// writes it.
	renumber := func(m conn.Meta) conn.Meta {
		switch m.State() {
		case Established:
			return m.WithState(SynSeen)
		case SynSeen:
			return m.WithState(Established)
		}
		return m
	}
	open := func(path string, c Config) (*File, error) {
		file, err := mapped.Lock(path)
		if err != nil {
			return nil, err
		}
		f := &File{file: file, readerOf: func(version uint32) func(conn.Meta) conn.Meta {
			if version == other {
				return renumber
			}
			return readerOf(version)
		}}
		return f, f.open(path, c, bootTime, ResizeFit)
	}
	for _, k := range []struct {
		name string
		to   Config
		kept bool
	}{{"the same size", from, false}, {"another size", larger, false}, {"no room", small, true}} {
		t.Run(k.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "flows")
			f := mustOpen(t, path, from)
			flows, before := halfEstablished(t, f, n)
			for a := range f.Table.arenas {
				for i := uint32(1); i < f.Table.arenas[a].fresh.Load(); i++ {
					r := f.Table.arenas[a].flow(i)
					r.meta.Store(uint64(renumber(r.load())))
				}
			}
			f.Table.head.version = other
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			f, err := open(path, k.to)
			if err != nil {
				t.Fatal(err)
			}
			checkResized(t, f, flows, before, [2]int{n, n})
			r := f.Recovery
			if !r.Moved || r.Kept != k.kept || r.Fresh || r.Recovered != 2*n || r.Torn+r.Expired+r.Lost != 0 ||
				r.FoundVersion != other {
				t.Errorf("%+v", r)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			inForce := k.to
			if k.kept {
				inForce = from
			}
			f = mustOpen(t, path, inForce) // the new file can be opened like any other
			defer f.Close()
			checkResized(t, f, flows, before, [2]int{n, n})
			if f.Recovery.Moved || f.Recovery.Fresh {
				t.Errorf("opened again: %+v", f.Recovery)
			}
		})
	}
}

// halfEstablished makes TCP flows of both families, as many of each, and establishes half of them.
func halfEstablished(t *testing.T, f *File, each uint32) (flows []NewFlow, before []Info) {
	t.Helper()
	h, err := f.Table.Register()
	if err != nil {
		t.Fatal(err)
	}
	h.Enter(bootTime)
	for i := range 2 * each {
		nf := newFlow(header.ProtoTCP, i&1 == 1, i)
		r := h.mustCreate(t, bootTime, nf)
		if i&2 == 0 {
			h.establish(r, bootTime)
		}
		var info Info
		h.Inspect(r, bootTime, &info)
		flows, before = append(flows, nf), append(before, info)
	}
	return flows, before
}

// checkResized compares the flows of a table with their former state, and fills the table with
// more.
func checkResized(t *testing.T, f *File, flows []NewFlow, before []Info, want [2]int) {
	t.Helper()
	validate(t, f.Table)
	h, err := f.Table.Register()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	h.Enter(bootTime)
	defer h.Leave()
	var found [2]int
	for i := range flows {
		r, side := h.lookup(&flows[i].Client, bootTime)
		if r == 0 {
			if before[i].State == Established && want[i&1] >= len(flows)/4 {
				t.Errorf("established flow %d is lost, and there was room", i)
			}
			continue
		}
		found[i&1]++
		var got Info
		h.Inspect(r, bootTime, &got)
		expect := before[i]
		expect.Ref, expect.Binding, expect.Counted, expect.Service, expect.Backend = got.Ref, 0, false, 0, 0
		if side != ClientSide || got != expect {
			t.Fatalf("flow %d is %+v, was %+v", i, got, expect)
		}
		if again, side := h.lookup(&got.Reply, bootTime); again != r || side != ReplySide {
			t.Fatalf("flow %d is not found by its reply", i)
		}
	}
	c := f.Table.Counts()
	if found != want || c.Live != [2]uint64{uint64(want[0]), uint64(want[1])} {
		t.Errorf("%v flows are found, %v counted, want %v", found, c.Live, want)
	}
}

// TestFileOfUnknownContents: Recovery distinguishes a table that cannot be read from no table.
func TestFileOfUnknownContents(t *testing.T) {
	for name, k := range map[string]struct {
		content []byte
		unread  bool
	}{
		"empty":   {nil, false},
		"short":   {[]byte("x"), true},
		"strange": {bytes.Repeat([]byte("strange"), 1000), true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "flows")
			for _, name := range []string{path, path + ".new"} { // .new: its process died while it moved flows
				if err := os.WriteFile(name, k.content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			f := mustOpen(t, path, fileConfig)
			defer f.Close()
			if r := f.Recovery; !r.Fresh || r.Unread != k.unread || r.Why == "" {
				t.Errorf("%+v, want unread %v", r, k.unread)
			}
			validate(t, f.Table)
		})
	}
}

// OpenFile fails in a second process, which does not affect the first; when the first is killed,
// its lock is released. The second process runs this test again.
func TestFileInUse(t *testing.T) {
	if path := os.Getenv("SLUICE_TEST_FLOW_FILE"); path != "" {
		if _, err := OpenFile(path, fileConfig, bootTime, ResizeFit); !errors.Is(err, ErrInUse) {
			t.Fatalf("a file in use: %v, want ErrInUse", err)
		}
		return
	}
	path := filepath.Join(t.TempDir(), "flows")
	f := mustOpen(t, path, fileConfig)
	defer f.Close()
	if _, err := OpenFile(path, fileConfig, bootTime, ResizeFit); !errors.Is(err, ErrInUse) {
		t.Errorf("opened twice in one process: %v, want ErrInUse", err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFileInUse$", "-test.v")
	cmd.Env = append(os.Environ(), "SLUICE_TEST_FLOW_FILE="+path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("second process: %v\n%s", err, out)
	}
	validate(t, f.Table)
}

func TestFileErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenFile(filepath.Join(dir, "missing", "flows"), fileConfig, bootTime, ResizeFit); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if _, err := OpenFile(filepath.Join(dir, "flows"), Config{}, bootTime, ResizeFit); err == nil {
		t.Error("no flows configured: accepted")
	}
}

// TestFileKeepsRestingPorts: the port of a UDP flow that was ended early also rests in the next
// process, after a restart and after a handover, for as long as it would have in this process.
func TestFileKeepsRestingPorts(t *testing.T) {
	for name, next := range map[string]func(*testing.T, *File, string, Time) *File{
		"restart": func(t *testing.T, f *File, path string, now Time) *File {
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			f, err := OpenFile(path, fileConfig, now, ResizeFit)
			if err != nil {
				t.Fatal(err)
			}
			return f
		},
		"hand-over": func(t *testing.T, f *File, path string, now Time) *File {
			fd, err := unix.FcntlInt(uintptr(f.FD()), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			next, err := TakeFile(os.NewFile(uintptr(fd), path), path, fileConfig)
			if err != nil {
				t.Fatal(err)
			}
			if err := next.Table.Assume(used(t, f.Table), now); err != nil {
				t.Fatal(err)
			}
			return next
		},
	} {
		for _, c := range []struct {
			after Time
			want  Status
		}{{second, PortsExhausted}, {9 * second, PortsExhausted}, {11 * second, Created}} {
			path := filepath.Join(t.TempDir(), "flows")
			f := mustOpen(t, path, fileConfig)
			h, err := f.Table.Register()
			if err != nil {
				t.Fatal(err)
			}
			flow := newFlow(header.ProtoUDP, false, 1)
			flow.Ports = Ports{First: 7000, Count: 1}
			h.Enter(bootTime)
			h.Delete(h.mustCreate(t, bootTime, flow))
			h.Leave()
			f = next(t, f, path, bootTime+c.after)
			if h, err = f.Table.Register(); err != nil {
				t.Fatal(err)
			}
			h.Enter(bootTime + c.after)
			flow.Client.SrcPort++
			if _, s := h.Create(bootTime+c.after, &flow); s != c.want {
				t.Errorf("%s, %d s later: another client gets the port: %v, want %v", name, c.after/second, s, c.want)
			}
			h.Leave()
			if err := f.Remove(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path + ".resting"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("after Remove: %v", err)
			}
		}
	}
}

// TestPortsOfLostFlowsRest: a flow that does not fit into a smaller table loses its port, to which
// its backend may still answer. No other client gets that port meanwhile.
func TestPortsOfLostFlowsRest(t *testing.T) {
	const flows = 200
	path := filepath.Join(t.TempDir(), "flows")
	large, small := fileConfig, fileConfig
	large.IPv4Flows, small.IPv4Flows = 2*flows, flows/4
	f := mustOpen(t, path, large)
	h, err := f.Table.Register()
	if err != nil {
		t.Fatal(err)
	}
	flow := func(n, client uint32) *NewFlow {
		f := newFlow(header.ProtoUDP, false, n)
		f.Client.SrcPort += uint16(client)
		f.Ports = Ports{First: 7000, Count: 1}
		return &f
	}
	h.Enter(bootTime)
	for n := range uint32(flows) {
		if _, s := h.Create(bootTime, flow(n, 0)); s != Created {
			t.Fatal(s)
		}
	}
	h.Leave()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for _, later := range []Time{second, 9 * second, 11 * second} {
		f, err = OpenFile(path, small, bootTime+later, ResizeForce)
		if err != nil {
			t.Fatal(err)
		}
		if later == second && f.Recovery.Lost == 0 {
			t.Error("no flow was lost")
		}
		if h, err = f.Table.Register(); err != nil {
			t.Fatal(err)
		}
		h.Enter(bootTime + later)
		got := 0
		for n := range uint32(flows) {
			if r, s := h.Create(bootTime+later, flow(n, 1)); s == Created {
				got++
				h.Delete(r)
			}
		}
		h.Leave()
		if later < 10*second && got != 0 || later > 10*second && got < flows/2 {
			t.Errorf("%d s later %d of %d ports are given to others", later/second, got, flows)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRestingOfAnotherSize: ports also rest in the next process if its table is larger or smaller,
// and no longer than before.
func TestRestingOfAnotherSize(t *testing.T) {
	const flows = 200 // as many keys, of which some change their place
	small, large := fileConfig, fileConfig
	large.IPv4Flows = minResting
	for name, sizes := range map[string][2]Config{"larger": {small, large}, "smaller": {large, small}} {
		for _, c := range []struct {
			after Time
			rest  int
		}{{9 * second, flows}, {11 * second, 0}} {
			path := filepath.Join(t.TempDir(), "flows")
			f := mustOpen(t, path, sizes[0])
			flow := func(n uint32) *NewFlow {
				f := newFlow(header.ProtoUDP, false, n)
				f.Ports = Ports{First: 7000, Count: 1}
				return &f
			}
			h, err := f.Table.Register()
			if err != nil {
				t.Fatal(err)
			}
			h.Enter(bootTime)
			for n := range uint32(flows) {
				// If its key shares a word with one that rests, it is refused, and rests with that.
				if r, s := h.Create(bootTime, flow(n)); s == Created {
					h.Delete(r)
				} else if s != PortsExhausted {
					t.Fatal(s)
				}
			}
			h.Leave()
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if f, err = OpenFile(path, sizes[1], bootTime+c.after, ResizeFit); err != nil {
				t.Fatal(err)
			}
			if h, err = f.Table.Register(); err != nil {
				t.Fatal(err)
			}
			h.Enter(bootTime + c.after)
			rest := 0
			for n := range uint32(flows) {
				other := flow(n)
				other.Client.SrcPort++
				if _, s := h.Create(bootTime+c.after, other); s == PortsExhausted {
					rest++
				}
			}
			if rest != c.rest {
				t.Errorf("%s, %d s later: %d ports rest, want %d", name, c.after/second, rest, c.rest)
			}
			h.Leave()
			if err := f.Remove(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestFileKeepsReleasedPorts: the port of a flow of which another gateway has forwarded a datagram
// rests also in the next process.
func TestFileKeepsReleasedPorts(t *testing.T) {
	c := fileConfig
	c.Group = true
	for _, tt := range []struct {
		after Time
		want  Status
	}{{20 * second, PortsExhausted}, {32 * second, Created}} {
		path := filepath.Join(t.TempDir(), "flows")
		f := mustOpen(t, path, c)
		h, err := f.Table.Register()
		if err != nil {
			t.Fatal(err)
		}
		flow := newFlow(header.ProtoUDP, false, 1)
		flow.Ports, flow.Tracked = Ports{First: 7000, Count: 1}, true
		h.Enter(bootTime)
		r := h.mustCreate(t, bootTime, flow)
		h.Report(r)
		h.Delete(r)
		h.Release(r, bootTime)
		h.Leave()
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if f, err = OpenFile(path, c, bootTime+tt.after, ResizeFit); err != nil {
			t.Fatal(err)
		}
		if h, err = f.Table.Register(); err != nil {
			t.Fatal(err)
		}
		h.Enter(bootTime + tt.after)
		flow.Client.SrcPort++
		if _, s := h.Create(bootTime+tt.after, &flow); s != tt.want {
			t.Errorf("%d s later: another client gets the port: %v, want %v", tt.after/second, s, tt.want)
		}
		h.Leave()
		if err := f.Remove(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRestingOfAnotherBoot: keys with times that the clock cannot have reached do not rest. If the
// setting was longer before, a key rests as long as the present one.
func TestRestingOfAnotherBoot(t *testing.T) {
	var r resting
	r.makeRoom(1)
	const now = Ticks(5000)
	r.words[1].Store(uint32(now) + uint32(impossibleRestTicks) + 1)
	r.words[2].Store(uint32(now) - 1)
	r.words[3].Store(uint32(now) + uint32(maxRest))
	r.words[4].Store(uint32(now) + uint32(maxRest) + 200)
	r.assume(now, maxRest)
	for key, want := range map[uint64]bool{0: false, 1: false, 2: false, 3: true, 4: true} {
		if r.has(key, now) != want {
			t.Errorf("key %d rests: %v, want %v", key, !want, want)
		}
	}
	if r.has(4, now+Ticks(maxRest)) {
		t.Error("a key rests for longer than the setting")
	}
}
