package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/cluster/nodes/spec"
)

const groupsDir = "/sys/fs/cgroup"

// mountAll makes the node's view of files: the machine's, except for files that a kubelet, a
// runtime and a gateway write or that they expect to be the node's own.
func mountAll(n *spec.Node) error {
	all, err := hierarchies() // while /sys/fs/cgroup still shows them
	if err != nil {
		return err
	}
	// Nothing gets out; within the node mounts propagate, as systemd has it.
	for _, flag := range [...]uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|flag, ""); err != nil {
			return fmt.Errorf("make mounts the node's own: %w", err)
		}
	}
	if err := errors.Join(mount("proc", "/proc", ""), mount("sysfs", "/sys", ""),
		mount("bpf", "/sys/fs/bpf", ""), mountGroups(all)); err != nil {
		return err
	}
	for _, dir := range n.Tmpfs {
		if err := mount("tmpfs", dir, fmt.Sprintf("mode=755,size=%d", n.SizeBytes)); err != nil {
			return err
		}
	}
	for path, text := range n.Files {
		if err := write(path, text); err != nil {
			return err
		}
	}
	return hideSysctls(n.Sysctls)
}

func mount(fs, dir, options string) error {
	if err := unix.Mount(fs, dir, fs, 0, options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", fs, dir, err)
	}
	return nil
}

func write(path, text string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
}

// mountGroups mounts the hierarchies again: in the node's namespace their root is the node's group.
func mountGroups(all []hierarchy) error {
	if err := mount("tmpfs", groupsDir, "mode=755"); err != nil {
		return err
	}
	for _, h := range all {
		dir := filepath.Join(groupsDir, filepath.Base(h.path))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := mount("cgroup", dir, h.options); err != nil {
			return err
		}
	}
	return nil
}

// hideSysctls mounts files over settings that a kubelet changes, and which are the machine's: how
// it overcommits, and whether it panics.
func hideSysctls(values map[string]string) error {
	for name, value := range values {
		real := filepath.Join("/proc/sys", name)
		if _, err := os.Stat(real); os.IsNotExist(err) {
			continue
		}
		file := filepath.Join("/run/node/sysctl", name)
		if err := write(file, value+"\n"); err != nil {
			return err
		}
		if err := unix.Mount(file, real, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount over %s: %w", real, err)
		}
	}
	return nil
}
