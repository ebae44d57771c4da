package flowtable

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
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
// killed its lock is released. The second process is this test again.
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

func TestFileErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenFile(filepath.Join(dir, "missing", "flows"), fileConfig, bootTime); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if _, err := OpenFile(filepath.Join(dir, "flows"), Config{}, bootTime); err == nil {
		t.Error("no flows configured: accepted")
	}
}
