package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// hierarchy is a mounted hierarchy of control groups, version 1.
type hierarchy struct {
	path    string // where it is mounted
	options string // mount options: controllers, or a name
}

// hierarchies reads the mounted hierarchies (proc_pid_mountinfo(5)). Nodes need version 1 or the
// hybrid of both, of which they get version 1.
func hierarchies() ([]hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []hierarchy
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// 36 35 98:0 /root /mount/point options [optional ...] - type source super,options
		mount, fs, ok := strings.Cut(lines.Text(), " - ")
		m, s := strings.Fields(mount), strings.Fields(fs)
		if !ok || len(m) < 6 || len(s) < 3 || s[0] != "cgroup" {
			continue
		}
		var options []string
		for o := range strings.SplitSeq(s[2], ",") {
			if o != "rw" && o != "ro" {
				options = append(options, o)
			}
		}
		// A hierarchy with a name alone has no controllers, which must be said to mount it.
		if len(options) == 1 && strings.HasPrefix(options[0], "name=") {
			options = append([]string{"none"}, options...)
		}
		all = append(all, hierarchy{m[4], strings.Join(options, ",")})
	}
	if len(all) == 0 {
		return nil, errors.New("no control groups of version 1 are mounted under /sys/fs/cgroup: " +
			"nodes on one machine need them (systemd.unified_cgroup_hierarchy=0 on the kernel's command line)")
	}
	return all, nil
}

// enterGroups makes the node's group in every hierarchy, and this process a member of it.
func enterGroups(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		group := filepath.Join(h.path, name)
		if err := os.Mkdir(group, 0o755); err != nil && !os.IsExist(err) {
			return fmt.Errorf("make a control group: %w", err)
		}
		// A group of cpuset takes nobody before it has processors and memory (cpusets.rst, 2.4).
		for _, file := range [...]string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(h.path, file))
			if os.IsNotExist(err) {
				continue
			}
			if err := errors.Join(err, os.WriteFile(filepath.Join(group, file), value, 0o644)); err != nil {
				return fmt.Errorf("control group: %w", err)
			}
		}
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())),
			0o644); err != nil {
			return fmt.Errorf("enter a control group: %w", err)
		}
	}
	return nil
}
