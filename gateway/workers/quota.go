package workers

import (
	"os"
	"path/filepath"
	"strings"
)

// Where cgroups are (cgroups(7)): version 2 is mounted here itself, and of version 1 the controller
// cpu has a directory below.
const (
	cgroupFile  = "/proc/self/cgroup"
	cgroupMount = "/sys/fs/cgroup"
)

// quota reports whether the processor time of this process is limited, and by which file: cpu.max
// or cpu.cfs_quota_us of its cgroup or of one above (Documentation/admin-guide/cgroup-v2.rst,
// scheduler/sched-bwc.rst). Such a limit does not bind real-time threads, and was set on purpose.
func quota() (file string, limited bool) {
	text, err := os.ReadFile(cgroupFile)
	if err != nil {
		return "", false // no cgroups
	}
	return quotaOf(cgroupMount, string(text))
}

// quotaOf is quota with /proc/self/cgroup and the directory of cgroups given.
func quotaOf(mount, text string) (file string, limited bool) {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		root, name, none := mount, "cpu.max", "max"
		if fields[1] != "" {
			if !strings.Contains(","+fields[1]+",", ",cpu,") {
				continue
			}
			root, name, none = filepath.Join(mount, fields[1]), "cpu.cfs_quota_us", "-1"
		}
		// The path may be one of the host's, where the mount shows the container's own cgroup.
		for at := fields[2]; ; at = filepath.Dir(at) {
			file := filepath.Join(root, at, name)
			if value, err := os.ReadFile(file); err == nil && !strings.HasPrefix(string(value), none) {
				return file, true
			}
			if at == "/" || at == "." {
				break
			}
		}
	}
	return "", false
}
