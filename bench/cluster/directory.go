package cluster

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

// directoryPrefix begins the names of clusters' directories. The number of the process
// that owns it follows, and something random.
const directoryPrefix = "sluice-cluster-"

// tmpfs is where directories are made: etcd writes, and nothing of it is for a disk.
func tmpfs() string {
	for _, dir := range [...]string{"/dev/shm", "/run"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC {
			return dir
		}
	}
	return os.TempDir()
}

func makeDirectory() (string, error) {
	dir, err := os.MkdirTemp(tmpfs(), fmt.Sprintf("%s%d-", directoryPrefix, os.Getpid()))
	if err != nil {
		return "", fmt.Errorf("cluster: %w", err)
	}
	return dir, nil
}

// sweep removes the directories of processes that were killed before they could. Only
// what is a directory and our user's can be one of them.
func sweep(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	var errs []error
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), directoryPrefix)
		number, _, _ := strings.Cut(rest, "-")
		pid, err := strconv.Atoi(number)
		if !ours || err != nil || !e.IsDir() || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			continue
		}
		info, err := e.Info()
		if err != nil { // gone by now
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == os.Geteuid() {
			errs = append(errs, os.RemoveAll(filepath.Join(parent, e.Name())))
		}
	}
	return errors.Join(errs...)
}
