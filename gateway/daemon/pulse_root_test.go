//go:build root

package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
)

// In a pod, where stateDir is a mount, the directory of the pulse stays unless the node is no
// gateway any more, because the announcer's pod has mounted it.
func TestPulseDirectoryStays(t *testing.T) {
	c := config.Default()
	c.StateDir = t.TempDir()
	must(t, unix.Mount("tmpfs", c.StateDir, "tmpfs", 0, ""))
	defer func() { must(t, unix.Unmount(c.StateDir, 0)) }()
	dir := filepath.Dir(c.PulseSocket())
	must(t, os.Mkdir(dir, 0o700))
	removePulseDirectory(c, false)
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("a pod that is followed by another one: %v", err)
	}
	removePulseDirectory(c, true)
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("after the last one: %v", err)
	}
}
