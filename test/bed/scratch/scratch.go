// Package scratch is where the laboratory keeps files while it runs: directories that carry their
// owner's process number in their names, so that the directories of a killed process can be
// recognised and removed.
package scratch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Tmpfs is a directory in memory, or else the one for temporary files: files there outlive a
// process and are not written to a disk.
func Tmpfs() string {
	for _, dir := range [...]string{"/dev/shm", "/run"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC {
			return dir
		}
	}
	return os.TempDir()
}

// Make makes a directory whose name begins with prefix, a dash at its end ("sluice-compare-"). The
// caller removes it.
func Make(parent, prefix string) (string, error) {
	dir, err := os.MkdirTemp(parent, fmt.Sprintf("%s%d-", prefix, os.Getpid()))
	if err != nil {
		return "", fmt.Errorf("directory for a run's files: %w", err)
	}
	return dir, nil
}

// Temporary is Make among the temporary files, after a Sweep of what killed processes left of the
// same prefix. Directories that cannot be removed are left: they disturb nobody.
func Temporary(prefix string) (string, error) {
	_, _ = Sweep(os.TempDir(), prefix, os.RemoveAll)
	return Make(os.TempDir(), prefix)
}

// Sweep removes the directories of a prefix whose process is gone, and returns their paths.
func Sweep(parent, prefix string, remove func(dir string) error) (removed []string, err error) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		pid, ok := owner(e, prefix)
		if !ok || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			continue
		}
		dir := filepath.Join(parent, e.Name())
		if err := remove(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, dir)
	}
	return removed, errors.Join(errs...)
}

// owner is the process that made a directory. Anybody can make a name in /dev/shm or /tmp, so only
// a directory that belongs to our user is one of ours.
func owner(e os.DirEntry, prefix string) (pid int, ok bool) {
	rest, ok := strings.CutPrefix(e.Name(), prefix)
	if !ok || !e.IsDir() {
		return 0, false
	}
	info, err := e.Info()
	if err != nil { // gone by now
		return 0, false
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
		return 0, false
	}
	number, _, ok := strings.Cut(rest, "-")
	pid, err = strconv.Atoi(number)
	return pid, ok && err == nil
}
