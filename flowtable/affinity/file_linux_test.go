package affinity

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/mapped"
)

var fileConfig = Config{Clients: 1000}

func mustOpen(t *testing.T, path string, c Config, now flowtable.Time) *File {
	t.Helper()
	f, err := OpenFile(path, c, now)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func mustClose(t *testing.T, f *File) {
	t.Helper()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// A process ends while it writes some pins: the next process has all others.
func TestFileKeepsPins(t *testing.T) {
	path := filepath.Join(t.TempDir(), "affinity")
	f := mustOpen(t, path, fileConfig, bootTime)
	if !f.Recovery.Fresh || f.Recovery.Why != "new file" {
		t.Errorf("a new file: %+v", f.Recovery)
	}
	if _, err := OpenFile(path, fileConfig, bootTime); !errors.Is(err, ErrInUse) {
		t.Errorf("opened twice: %v, want ErrInUse", err)
	}
	const n = 600
	for i := range n {
		f.Table.Confirm(bootTime, client(i), 7, backend(i), uint32(100+i%2*100))
	}
	for i := range f.Table.sets[:50] {
		s := &f.Table.sets[i]
		at, _, ok := s.claim(s.ctl.Load(), -1, 0, false)
		if !ok {
			t.Fatal("no slot to claim")
		}
		s.slots[at].key[0].Store(99) // the write stops here
	}
	evicted := n - f.Table.Counts(bootTime).Live
	mustClose(t, f)

	f = mustOpen(t, path, fileConfig, bootTime+100*second)
	if f.Recovery != (Recovery{Kept: n - evicted}) {
		t.Errorf("opened again: %+v, want %d kept", f.Recovery, n-evicted)
	}
	validate(t, f.Table)
	for i := range n {
		if p, _, ok := f.Table.Get(bootTime, client(i), 7); ok && p != backend(i) {
			t.Errorf("client %d has %+v", i, p)
		}
	}
	mustClose(t, f)

	f = mustOpen(t, path, fileConfig, bootTime+101*second)
	if r := f.Recovery; r.Kept == 0 || r.Kept+r.Ended != n-evicted || r.Ended < n/2-evicted || r.Damaged != 0 {
		t.Errorf("opened when half have ended: %+v", r)
	}
	validate(t, f.Table)
	if err := f.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Remove: %v", err)
	}
}

func TestFileOfAnotherKind(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(h *head)
		want Config
		why  string
	}{
		{"magic", func(h *head) { h.magic++ }, fileConfig, "no affinity table"},
		{"version", func(h *head) { h.version++ }, fileConfig, "version 3"},
		{"sets", func(h *head) { h.setBytes *= 2 }, fileConfig, "made for"},
		{"no key", func(h *head) { h.secret = flowtable.HashKey{} }, fileConfig, "no hash key"},
		{"another size", func(*head) {}, Config{Clients: 5000}, "bytes"},
		{"another number of the same size", func(*head) {}, Config{Clients: 999},
			"made for 1000 clients, configured are 999"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "affinity")
			f := mustOpen(t, path, fileConfig, bootTime)
			f.Table.Confirm(bootTime, client(1), 7, backend(1), 1000)
			c.edit(&mapped.Slice[head](f.file.Mem, 0, 1)[0])
			mustClose(t, f)
			f = mustOpen(t, path, c.want, bootTime)
			defer mustClose(t, f)
			if !f.Recovery.Fresh || !strings.Contains(f.Recovery.Why, c.why) {
				t.Errorf("%+v, want a fresh table because of %q", f.Recovery, c.why)
			}
			if _, _, ok := f.Table.Get(bootTime, client(1), 7); ok {
				t.Error("a fresh table has a pin")
			}
			f.Table.Confirm(bootTime, client(1), 7, backend(1), 1000)
			validate(t, f.Table)
		})
	}
}

// In damaged memory, invalid pins are dropped.
func TestRecoverDamaged(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(tb *Table, s *set, at int)
		want   Recovery
	}{
		{"nothing", func(*Table, *set, int) {}, Recovery{Kept: 1}},
		{"another key", func(_ *Table, s *set, at int) { s.slots[at].key[2].Add(1) }, Recovery{Damaged: 1}},
		{"another tag", func(_ *Table, s *set, at int) { s.tags[at/tagsPer].Add(1 << (at % tagsPer * tagBits)) },
			Recovery{Damaged: 1}},
		{"no end", func(_ *Table, s *set, at int) { s.slots[at].end.Add(1 << 55) }, Recovery{Damaged: 1}},
		{"another set", func(tb *Table, s *set, at int) {
			e, other := s.slots[at].load(), &tb.sets[0]
			if other == s {
				other = &tb.sets[1]
			}
			other.write(3, s.tag(at), &e)
			other.ctl.Or(1 << 3)
		}, Recovery{Kept: 1, Damaged: 1}},
		{"two", func(_ *Table, s *set, at int) {
			e := s.slots[at].load()
			s.write(at+1, s.tag(at), &e)
			s.ctl.Or(1 << (at + 1))
		}, Recovery{Kept: 1, Damaged: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			size, err := Size(fileConfig)
			if err != nil {
				t.Fatal(err)
			}
			words := make([]uint64, size/8) // aligned as a set must be
			mem := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), size)
			tb := format(mem, &fileConfig)
			tb.Confirm(bootTime, client(1), 7, backend(1), 1000)
			who := client(1)
			key := keyOf(&who, 7)
			s, tag := tb.place(&key)
			var e entry
			c.damage(tb, s, s.find(s.ctl.Load(), tag, &key, &e))
			tb, got, err := recoverTable(mem, &fileConfig, bootTime)
			if err != nil || got != c.want {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
			validate(t, tb)
		})
	}
}

func TestFileErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenFile(filepath.Join(dir, "missing", "affinity"), fileConfig, bootTime); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if _, err := OpenFile(filepath.Join(dir, "affinity"), Config{}, bootTime); err == nil {
		t.Error("no clients configured: accepted")
	}
}

// TestTakeFile: another process that received the file has the same pins, and the lock.
func TestTakeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "affinity")
	f, err := OpenFile(path, fileConfig, bootTime)
	if err != nil {
		t.Fatal(err)
	}
	dup := func() *os.File {
		fd, err := unix.FcntlInt(uintptr(f.FD()), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fd), path)
	}
	larger := fileConfig
	larger.Clients *= 100
	if _, err := TakeFile(dup(), path, larger); !errors.Is(err, ErrLayout) {
		t.Errorf("for more clients: %v", err)
	}
	next, err := TakeFile(dup(), path, fileConfig)
	if err != nil {
		t.Fatal(err)
	}
	if next.Table.secret != f.Table.secret {
		t.Error("another secret: no pin would be found")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(path, fileConfig, bootTime); !errors.Is(err, ErrInUse) {
		t.Errorf("opened while the next process has it: %v", err)
	}
	if err := next.Remove(); err != nil {
		t.Fatal(err)
	}
}
