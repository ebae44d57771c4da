package launch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// goneProcess is the number of a process that has ended.
func goneProcess(t *testing.T) int {
	t.Helper()
	c := exec.Command("/bin/true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	return c.Process.Pid
}

func TestSweep(t *testing.T) {
	gone, parent := goneProcess(t), t.TempDir()
	name := func(pid int, rest string) string { return fmt.Sprintf("%s%d%s", directoryPrefix, pid, rest) }
	for _, tc := range []struct {
		dir  string
		kept bool
	}{
		{name(gone, "-1"), false},
		{name(gone, "-2"), false},
		{name(os.Getpid(), "-1"), true},
		{name(1, "-1"), true},
		{name(gone, ""), true}, // not a name that we give
		{directoryPrefix + "x-1", true},
		{name(-gone, "-1"), true},
		{fmt.Sprintf("sluice-%d-1", gone), true},
	} {
		dir := filepath.Join(parent, tc.dir)
		if err := os.MkdirAll(filepath.Join(dir, stateDir), 0o755); err != nil {
			t.Fatal(err)
		}
		removed, err := sweep(parent)
		if err != nil {
			t.Errorf("%s: %v", tc.dir, err)
		}
		_, err = os.Stat(dir)
		if kept := err == nil; kept != tc.kept || slices.Contains(removed, dir) == kept {
			t.Errorf("%s: kept %v, want %v; said to be removed: %v", tc.dir, kept, tc.kept, removed)
		}
	}
}
