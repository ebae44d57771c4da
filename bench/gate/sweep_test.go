package gate

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

// /dev/shm is everybody's: what is not a directory of ours is left alone.
func TestSweepLeavesOthersAlone(t *testing.T) {
	gone, parent := goneProcess(t), t.TempDir()
	target := t.TempDir()
	link := filepath.Join(parent, fmt.Sprintf("%s%d-link", directoryPrefix, gone))
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	theirs := filepath.Join(parent, fmt.Sprintf("%s%d-theirs", directoryPrefix, gone))
	if err := os.Mkdir(theirs, 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		t.Fatal("needs root: to give a directory away")
	}
	if err := os.Chown(theirs, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if removed, err := sweep(parent); err != nil || len(removed) > 0 {
		t.Errorf("removed %v, %v", removed, err)
	}
}

// The directory of a killed owner has a file system mounted in it.
func TestSweepUnmounts(t *testing.T) {
	needRoot(t)
	parent := t.TempDir()
	dir := filepath.Join(parent, fmt.Sprintf("%s%d-1", directoryPrefix, goneProcess(t)))
	mount := filepath.Join(dir, bpfDir)
	if err := os.MkdirAll(mount, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bpf", mount, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	if removed, err := sweep(parent); err != nil || len(removed) != 1 {
		_ = unix.Unmount(mount, unix.MNT_DETACH)
		t.Errorf("removed %v, %v", removed, err)
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), parent) {
		t.Errorf("still mounted: %v", err)
	}
}
