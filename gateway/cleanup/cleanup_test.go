package cleanup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/flowtable/mapped"
)

// node is a configuration whose directories are the test's own.
func node(t *testing.T) *config.Configuration {
	t.Helper()
	c := config.Default()
	c.StateDir, c.BPFFS = filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "bpf")
	c.Tuning.HostLinkName = "sluicetest"
	return c
}

func write(t *testing.T, c *config.Configuration, names ...string) {
	t.Helper()
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(c.StateDir, n)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(c.StateDir, n), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFiles: which files of the state directory go, and whether the directory does.
func TestFiles(t *testing.T) {
	for _, tt := range []struct {
		name         string
		found, left  []string
		stateDirLeft bool
	}{
		{"nothing", nil, nil, false},
		{"all of a daemon's", []string{"flows", "flows.new", "flows.resting", "pins", "modes.json",
			"owners.json", "owners.json.new", "reload.sock", "pulse/pulse.sock"}, nil, false},
		{"something of somebody else's", []string{"flows", "notes.txt"}, []string{"notes.txt"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := node(t)
			write(t, c, tt.found...)
			removed, err := Run(c)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range tt.found {
				if said := slices.Contains(removed, filepath.Join(c.StateDir, f)); said == slices.Contains(tt.left, f) {
					t.Errorf("%s removed: %v, in %q", f, said, removed)
				}
			}
			entries, err := os.ReadDir(c.StateDir)
			if (err == nil) != tt.stateDirLeft || len(entries) != len(tt.left) {
				t.Errorf("left: %v, %v; want %q", entries, err, tt.left)
			}
			if again, err := Run(c); err != nil || len(again) > 0 {
				t.Errorf("the second time: %q, %v", again, err)
			}
		})
	}
}

// TestRefuses: while a process has the flow table nothing changes.
func TestRefuses(t *testing.T) {
	c := node(t)
	write(t, c, "pins")
	lock, err := mapped.Lock(filepath.Join(c.StateDir, "flows"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	removed, err := Run(c)
	if !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), c.StateDir) || len(removed) > 0 {
		t.Errorf("%q, %v", removed, err)
	}
	if _, err := os.Stat(filepath.Join(c.StateDir, "pins")); err != nil {
		t.Error(err)
	}
}

// TestForeignFileSystem: a bpfFS that is none has nothing of ours, and stays as it is.
func TestForeignFileSystem(t *testing.T) {
	c := node(t)
	inside := filepath.Join(c.BPFFS, "sluice", "maps_2")
	if err := os.MkdirAll(inside, 0o700); err != nil {
		t.Fatal(err)
	}
	if removed, err := Run(c); err != nil || len(removed) > 0 {
		t.Errorf("%q, %v", removed, err)
	}
	if _, err := os.Stat(inside); err != nil {
		t.Error(err)
	}
}
