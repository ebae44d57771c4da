package launch

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/scratch"
)

// directoryPrefix begins the names of gateways' directories. The number of the
// process that owns it follows, and something random.
const directoryPrefix = "sluice-gate-"

// makeDirectory makes one where the flow table should be: in memory that outlives the daemon.
func makeDirectory() (string, error) { return scratch.Make(scratch.Tmpfs(), directoryPrefix) }

// removeDirectory removes a gateway's directory. A killed daemon may have left its BPF file system
// mounted there, for a successor, and a killed test a file system for the state.
func removeDirectory(dir string) error {
	var failed error
	for _, name := range []string{bpfDir, stateDir} {
		err := unix.Unmount(filepath.Join(dir, name), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // mounted
			failed = errors.Join(failed, err)
		}
	}
	return errors.Join(failed, os.RemoveAll(dir))
}
