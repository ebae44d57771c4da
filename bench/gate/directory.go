package gate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// directoryPrefix begins the names of gateways' directories. The number of the
// process that owns it follows, and something random.
const directoryPrefix = "sluice-gate-"

// tmpfs is where directories are made: where the flow table should be, in memory
// that outlives the daemon, and nothing to write to a disk.
func tmpfs() string {
	for _, dir := range []string{"/dev/shm", "/run"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC {
			return dir
		}
	}
	return os.TempDir()
}

func makeDirectory() (string, error) {
	return os.MkdirTemp(tmpfs(), fmt.Sprintf("%s%d-", directoryPrefix, os.Getpid()))
}

// removeDirectory removes a gateway's directory, which a killed daemon may have left
// with its BPF file system mounted: for its successor, of which there is none.
func removeDirectory(dir string) error {
	err := unix.Unmount(filepath.Join(dir, bpfDir), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // not mounted, not there
		err = nil
	}
	return errors.Join(err, os.RemoveAll(dir))
}
