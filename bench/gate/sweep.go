package gate

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Sweep removes the directories of gateways whose process is gone without a Close,
// and returns their paths.
func Sweep() ([]string, error) { return sweep(tmpfs()) }

func sweep(parent string) (removed []string, err error) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		pid, ok := owner(e)
		if !ok || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			continue
		}
		dir := filepath.Join(parent, e.Name())
		if err := removeDirectory(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, dir)
	}
	return removed, errors.Join(errs...)
}

// owner is the process that made a gateway's directory. Anybody can make a name in
// /dev/shm, so only what is a directory and our user's is a gateway's.
func owner(e os.DirEntry) (pid int, ok bool) {
	rest, ok := strings.CutPrefix(e.Name(), directoryPrefix)
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
