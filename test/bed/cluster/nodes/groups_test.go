//go:build root

package nodes

import (
	"os"
	"path/filepath"
	"testing"
)

// Control groups within control groups go, and one that is not there is as good as gone.
func TestRemoveGroup(t *testing.T) {
	parents := groupParents()
	if len(parents) == 0 {
		t.Fatal("no control groups are mounted under /sys/fs/cgroup")
	}
	name := groupPrefix + "0-test"
	dir := filepath.Join(parents[len(parents)-1], name)
	if err := os.MkdirAll(filepath.Join(dir, "kubepods", "burstable"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := removeGroup(dir); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s: %v", dir, err)
	}
}
