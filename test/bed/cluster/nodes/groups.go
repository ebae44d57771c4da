package nodes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/scratch"
)

// groupParents are where the hierarchies of control groups are mounted.
func groupParents() []string {
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*") // the pattern is well-formed
	return slices.DeleteFunc(dirs, func(dir string) bool {
		info, err := os.Lstat(dir)
		return err != nil || !info.IsDir()
	})
}

// removeGroups removes a node's control groups in all hierarchies.
func removeGroups(name string) error {
	var errs []error
	for _, parent := range groupParents() {
		errs = append(errs, removeGroup(filepath.Join(parent, name)))
	}
	return errors.Join(errs...)
}

// removeGroup removes a control group and its descendants, the innermost first: the files in it
// cannot be and need not be removed. A process that was killed is in its group until it is reaped,
// so this waits a little.
func removeGroup(dir string) error {
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	deadline := time.Now().Add(10 * time.Second)
	for _, path := range slices.Backward(all) {
		for {
			err := unix.Rmdir(path)
			if err == nil || errors.Is(err, unix.ENOENT) {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				return fmt.Errorf("remove control group %s: %w", path, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}

// sweepGroups removes control groups and files of nodes whose owner was killed before it could.
func sweepGroups() error {
	var errs []error
	for _, parent := range groupParents() {
		_, err := scratch.Sweep(parent, groupPrefix, removeGroup)
		errs = append(errs, err)
	}
	_, err := scratch.Sweep(scratch.Tmpfs(), groupPrefix, os.RemoveAll)
	if err := errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("nodes: sweep: %w", err)
	}
	return nil
}
