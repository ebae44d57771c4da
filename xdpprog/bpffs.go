package xdpprog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// onBPFFS reports whether dir, or the nearest parent that exists, is on a bpffs.
func onBPFFS(dir string) (bool, error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			return st.Type == unix.BPF_FS_MAGIC, nil
		}
		if parent := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && parent != dir {
			dir = parent
			continue
		}
		return false, fmt.Errorf("statfs %s: %w", dir, err)
	}
}

// EnsureBPFFS makes dir a directory on a bpffs, and mounts a bpffs there if there is none. It
// reports whether it mounted one; the mount outlives the process, as pins must. It fails if the
// mount would hide files, because dir is on another file system and not empty.
func EnsureBPFFS(dir string) (mountedHere bool, err error) {
	ok, err := onBPFFS(dir)
	if err != nil {
		return false, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, fmt.Errorf("make bpffs directory: %w", err)
	}
	if ok {
		return false, nil
	}
	if err := hidesNothing(dir); err != nil {
		return false, err
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return false, fmt.Errorf("mount bpffs on %s: %w", dir, explain(err))
	}
	return true, nil
}

// hidesNothing returns an error if a mount on dir would hide files.
func hidesNothing(dir string) error {
	switch entries, err := os.ReadDir(dir); {
	case err != nil:
		return fmt.Errorf("bpffs directory: %w", err)
	case len(entries) > 0:
		return fmt.Errorf("bpfFS %s is no bpffs, and not empty: a mount would hide %s; mount one (mount -t bpf "+
			"bpf DIR) or name another directory", dir, entries[0].Name())
	}
	return nil
}

// CheckBPFFS returns the error with which EnsureBPFFS would fail, as far as it can be determined
// without changes.
func CheckBPFFS(dir string) error {
	ok, err := onBPFFS(dir)
	if err != nil || ok {
		return err
	}
	if err := hidesNothing(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if has, err := capabilities(); err == nil && !has(unix.CAP_SYS_ADMIN) {
		return fmt.Errorf("mount bpffs on %s: the process lacks CAP_SYS_ADMIN; mount one (mount -t bpf bpf DIR)", dir)
	}
	return nil
}

// UnmountBPFFS undoes an EnsureBPFFS that mounted. All pins there are removed. The directory stays:
// only the caller knows whether it existed before.
func UnmountBPFFS(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount bpffs on %s: %w", dir, err)
	}
	return nil
}
