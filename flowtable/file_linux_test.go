package flowtable

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"sluice.dev/sluice/nat/header"
)

var fileConfig = Config{IPv4Flows: 1000, IPv6Flows: 100, Timeouts: DefaultTimeouts()}

func mustOpen(t *testing.T, path string, c Config) *File {
	t.Helper()
	f, err := OpenFile(path, c, bootTime)
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
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	other := fileConfig
	other.IPv4Flows = 2000
	f = mustOpen(t, path, other)
	if !f.Recovery.Fresh || f.Table.Counts().Live[0] != 0 {
		t.Errorf("opened with another size: %+v", f.Recovery)
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
	if !f.Recovery.Fresh || !bytes.Contains([]byte(f.Recovery.Why), []byte("version")) {
		t.Errorf("%+v, want a fresh table because of the version", f.Recovery)
	}
}

// A second process is refused, the first does not notice, and when the first is
// killed the lock goes with it. The second process is this test again.
func TestFileInUse(t *testing.T) {
	if path := os.Getenv("SLUICE_TEST_FLOW_FILE"); path != "" {
		if _, err := OpenFile(path, fileConfig, bootTime); !errors.Is(err, ErrInUse) {
			t.Fatalf("a file in use: %v, want ErrInUse", err)
		}
		return
	}
	path := filepath.Join(t.TempDir(), "flows")
	f := mustOpen(t, path, fileConfig)
	defer f.Close()
	if _, err := OpenFile(path, fileConfig, bootTime); !errors.Is(err, ErrInUse) {
		t.Errorf("opened twice in one process: %v, want ErrInUse", err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFileInUse$", "-test.v")
	cmd.Env = append(os.Environ(), "SLUICE_TEST_FLOW_FILE="+path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("second process: %v\n%s", err, out)
	}
	validate(t, f.Table)
}

// The file is deleted, and perhaps made anew, after it was opened and before it is
// locked: the lock is on nothing then.
func TestLockOfDeletedFile(t *testing.T) {
	for _, c := range []struct {
		name      string
		meanwhile func(path string) error
		current   bool
	}{
		{"nothing happens", func(string) error { return nil }, true},
		{"deleted", os.Remove, false},
		{"deleted and made anew", func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, nil, 0o600))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "flows")
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := c.meanwhile(path); err != nil {
				t.Fatal(err)
			}
			if current, err := lock(f, path); current != c.current || err != nil {
				t.Errorf("lock: %v %v, want %v", current, err, c.current)
			}
		})
	}
}

// Instances that open and remove one file at once: at no time do two have it.
func TestFileOpenedAndRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows")
	c := Config{IPv4Flows: 1, Timeouts: DefaultTimeouts()}
	rounds := 300
	if testing.Short() || raceEnabled {
		rounds = 50
	}
	var holders, opened atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range rounds {
				f, err := OpenFile(path, c, bootTime)
				if errors.Is(err, ErrInUse) {
					continue
				} else if err != nil {
					t.Error(err)
					return
				}
				opened.Add(1)
				if holders.Add(1) != 1 {
					t.Error("two have the table's file")
				}
				named, err := os.Stat(path)
				ours, err2 := f.file.Stat()
				if err != nil || err2 != nil || !os.SameFile(named, ours) {
					t.Errorf("the path does not name the file that was opened: %v %v", err, err2)
				}
				holders.Add(-1)
				if err := f.Remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("opened %d times", opened.Load())
}

func TestFileErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenFile(filepath.Join(dir, "missing", "flows"), fileConfig, bootTime); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if _, err := OpenFile(filepath.Join(dir, "flows"), Config{}, bootTime); err == nil {
		t.Error("no flows configured: accepted")
	}
}
