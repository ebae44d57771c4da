package launch

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/bench/scratch"
)

// directoryPrefix begins the names of gateways' directories. The number of the
// process that owns it follows, and something random.
const directoryPrefix = "sluice-gate-"

// makeDirectory makes one where the flow table should be: in memory that outlives the daemon.
func makeDirectory() (string, error) { return scratch.Make(scratch.Tmpfs(), directoryPrefix) }

// removeDirectory removes a gateway's directory, which a killed daemon may have left
// with its BPF file system mounted: for its successor, of which there is none.
func removeDirectory(dir string) error {
	err := unix.Unmount(filepath.Join(dir, bpfDir), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // not mounted, not there
		err = nil
	}
	return errors.Join(err, os.RemoveAll(dir))
}
