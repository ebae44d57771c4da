//go:build root

package doctor

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
)

// TestStateRemedy runs the commands that doctor prints for a state directory on a disk, in a mount
// namespace of its own. Afterwards doctor has no finding and the daemon's own check passes.
func TestStateRemedy(t *testing.T) {
	runtime.LockOSThread() // and never unlocked: the thread ends with the test, and its mounts with it
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	f := healthy()
	dir := filepath.Join(t.TempDir(), "state")
	f.Config.StateDir, f.StateDisk, f.RunDisk = dir, true, true
	command, _, found := strings.Cut(stateFinding(t, f, Warn).Do, ", ")
	if !found {
		t.Fatal("the remedy has no command")
	}
	if out, err := exec.Command("sh", "-ec", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	if err := f.Config.CheckStateDir(); err != nil {
		t.Errorf("after %s: %v", command, err)
	}
	f.StateDisk, f.StateRefused = !config.InMemory(dir), refusal(f.Config.CheckStateDir())
	stateFinding(t, f, OK)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	f.StateRefused = refusal(f.Config.CheckStateDir())
	_, command, _ = strings.Cut(stateFinding(t, f, Fail).Do, ", or ")
	if out, err := exec.Command("sh", "-ec", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	f.StateRefused = refusal(f.Config.CheckStateDir())
	stateFinding(t, f, OK)
}

// stateFinding is the finding about the state directory, which must have a level.
func stateFinding(t *testing.T, f *Facts, level Level) Finding {
	t.Helper()
	for _, finding := range Examine(f) {
		if finding.Check == "state-dir" {
			if finding.Level != level {
				t.Fatalf("got %+v, want level %s", finding, level)
			}
			return finding
		}
	}
	t.Fatal("no finding about the state directory")
	return Finding{}
}
