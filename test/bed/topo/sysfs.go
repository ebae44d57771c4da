package topo

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/xsk/napi"
)

// SetDevice writes an attribute of one of the host's interfaces, a path below
// /sys/class/net/DEV: "queues/rx-0/rps_cpus".
func (h *Host) SetDevice(dev, attribute, value string) error {
	return h.attribute(dev, attribute, unix.O_WRONLY, func(f *os.File) error {
		_, err := f.WriteString(value)
		return err
	})
}

// Device reads what SetDevice writes.
func (h *Host) Device(dev, attribute string) (value string, err error) {
	err = h.attribute(dev, attribute, unix.O_RDONLY, func(f *os.File) error {
		text, err := io.ReadAll(f)
		value = strings.TrimSpace(string(text))
		return err
	})
	return value, err
}

// attribute opens a file of the host's sysfs. The sysfs on /sys shows the interfaces of the
// namespace that mounted it; so this mounts one for the host's namespace, without a place in the
// file system: it is gone when it is closed, and nobody else sees it.
func (h *Host) attribute(dev, attribute string, flags int, use func(*os.File) error) error {
	name := "class/net/" + dev + "/" + attribute
	err := h.ns.run(func() error {
		mount, err := napi.MountSysfs()
		if err != nil {
			return err
		}
		defer unix.Close(mount)
		fd, err := unix.Openat(mount, name, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), name)
		return errors.Join(use(f), f.Close())
	})
	if err != nil {
		return fmt.Errorf("%s: sysfs %s: %w", h.Name, name, err)
	}
	return nil
}
