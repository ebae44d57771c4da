package workers

import (
	"os"
	"path/filepath"
	"strings"
)

// Paths of cgroups (cgroups(7)): version 2 is mounted at cgroupMount; in version 1 the controller
// cpu has a directory below it.
const (
	cgroupFile  = "/proc/self/cgroup"
	cgroupMount = "/sys/fs/cgroup"
)

// quota reports whether the processor time of this process is limited, and by which file: cpu.max
// or cpu.cfs_quota_us of its cgroup or of one above (Documentation/admin-guide/cgroup-v2.rst,
// scheduler/sched-bwc.rst). Real-time threads would evade such a limit, which was set on purpose.
func quota() (file string, limited bool) {
	text, err := os.ReadFile(cgroupFile)
	if err != nil {
		return "", false // no cgroups
	}
	return quotaOf(cgroupMount, string(text))
}

// quotaOf is quota with the mount of cgroups and the content of /proc/self/cgroup as arguments.
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
		// The path may be the host's, while the mount shows the container's own cgroup.
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
