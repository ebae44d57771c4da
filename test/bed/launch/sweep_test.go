//go:build root

package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Other programs use /dev/shm too: files that are not our directories are kept.
func TestSweepKeepsOtherFiles(t *testing.T) {
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
