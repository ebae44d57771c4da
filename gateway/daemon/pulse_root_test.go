//go:build root

package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
)

// In a pod, which has stateDir mounted, the directory of the pulse stays, as the announcer's pod
// has it mounted, unless the node is no gateway any more.
func TestPulseDirectoryStays(t *testing.T) {
	c := config.Default()
	c.StateDir = t.TempDir()
	must(t, unix.Mount("tmpfs", c.StateDir, "tmpfs", 0, ""))
	defer func() { must(t, unix.Unmount(c.StateDir, 0)) }()
	dir := filepath.Dir(c.PulseSocket())
	must(t, os.Mkdir(dir, 0o700))
	d := &Daemon{config: c}
	d.removePulseDirectory()
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("a pod that is followed by another one: %v", err)
	}
	d.leaving = "the node is no gateway any more"
	d.removePulseDirectory()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("after the last one: %v", err)
	}
}
