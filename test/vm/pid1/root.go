package pid1

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is one of mount(2)'s, on a directory that is made if it is missing.
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func (m mount) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.kind, m.target, err)
	}
	return nil
}

func mountAll(mounts []mount) error {
	for _, m := range mounts {
		if err := m.do(); err != nil {
			return err
		}
	}
	return nil
}

// mountFirst mounts what loading modules needs.
func mountFirst() error {
	return mountAll([]mount{
		{"proc", "/proc", "proc", 0, ""},
		{"sysfs", "/sys", "sysfs", 0, ""},
		{"dev", "/dev", "devtmpfs", 0, ""},
	})
}

// moduleCompressed is MODULE_INIT_COMPRESSED_FILE of include/uapi/linux/module.h: the kernel
// unpacks.
const moduleCompressed = 4

// loadEarly loads the modules of the initramfs in the order of their names.
func loadEarly() error {
	modules, err := filepath.Glob(ModuleDir + "/*")
	if err != nil {
		return err
	}
	for _, name := range modules { // sorted
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		flags := 0
		if !strings.HasSuffix(name, ".ko") {
			flags = moduleCompressed
		}
		err = unix.FinitModule(int(f.Fd()), "", flags)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load %s: %w", name, err)
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// msize is the most that one 9p message carries; the transport allows no more than 128 pages less
// two.
const msize = "trans=virtio,version=9p2000.L,msize=512000"

// enterRoot mounts the host's root with memory above it, and makes it ours.
func enterRoot(o Order) error {
	err := mountAll([]mount{
		// nobody else changes it meanwhile in a way that matters
		{RootTag, "/lower", "9p", unix.MS_RDONLY, msize + ",cache=loose"},
		{"tmpfs", "/memory", "tmpfs", 0, "size=75%"},
	})
	if err != nil {
		return err
	}
	for _, d := range []string{"/memory/upper", "/memory/work"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	overlay := mount{"overlay", "/root", "overlay", 0, "lowerdir=/lower,upperdir=/memory/upper,workdir=/memory/work"}
	if err := overlay.do(); err != nil {
		return err
	}
	// Moved before the move of the root, or they would stay beneath it, where nothing has a name.
	for _, d := range []string{"/proc", "/sys", "/dev"} {
		if err := unix.Mount(d, "/root"+d, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", d, err)
		}
	}
	if err := os.Chdir("/root"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	return os.Chdir("/")
}

// mountRest mounts what a running system has, the shared directory and the kernel's modules.
func mountRest(o Order) error {
	mounts := []mount{
		{"run", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
		{"devpts", "/dev/pts", "devpts", 0, "mode=620,ptmxmode=666"},
		{"shm", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, ""},
		{"bpf", "/sys/fs/bpf", "bpf", 0, "mode=700"},
		{"debugfs", "/sys/kernel/debug", "debugfs", 0, ""},
		{"tracefs", "/sys/kernel/tracing", "tracefs", 0, ""},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""},
		{o.Modules, filepath.Join("/lib/modules", o.Release), "bind", unix.MS_BIND, ""},
	}
	if o.Share != "" {
		mounts = append(mounts, mount{ShareTag, o.Share, "9p", 0, msize + ",cache=mmap"})
	}
	if err := mountAll(mounts); err != nil {
		return err
	}
	for link, to := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1",
		"/dev/stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(to, link); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}
