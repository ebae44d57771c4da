package cluster

import (
	"fmt"
	"os"

	"sluice.dev/sluice/test/bed/scratch"
)

// directoryPrefix begins the names of clusters' directories. The number of the process
// that owns it follows, and something random.
const directoryPrefix = "sluice-cluster-"

// tmpfs is where directories are made: etcd writes, and nothing of it is for a disk.
func tmpfs() string { return scratch.Tmpfs() }

func makeDirectory() (string, error) { return scratch.Make(tmpfs(), directoryPrefix) }

// sweep removes the directories of processes that were killed before they could.
func sweep(parent string) error {
	if _, err := scratch.Sweep(parent, directoryPrefix, os.RemoveAll); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}
