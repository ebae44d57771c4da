package napi

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// directory is a device's directory in a sysfs.
type directory struct{ fd int }

// openDevice opens the directory of a device in a sysfs of the calling thread's network namespace:
// a new mount that is in no directory, or else /sys.
func openDevice(name string, ifindex int) (files, error) {
	path := "class/net/" + name
	var last error
	for _, root := range []func() (int, error){MountSysfs, openSys} {
		fd, err := root()
		if err != nil {
			last = err
			continue
		}
		dir, err := unix.Openat(fd, path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		if err != nil {
			last = err
			continue
		}
		d := directory{dir}
		text, err := d.read("ifindex")
		if n, _ := strconv.Atoi(text); err == nil && n == ifindex {
			return d, nil
		}
		unix.Close(dir)
		last = errors.Join(err,
			fmt.Errorf("/sys shows index %q, the device has %d: /sys is of another network namespace, mount one of "+
				"this", text, ifindex))
	}
	return nil, fmt.Errorf("settings of %s: %w", name, last)
}

// MountSysfs returns a sysfs of the calling thread's network namespace, which is in no directory.
// It needs CAP_SYS_ADMIN, and Linux 5.2 (fsopen).
func MountSysfs() (int, error) {
	fs, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open sysfs: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("make sysfs: %w", err)
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
}

func openSys() (int, error) {
	return unix.Open("/sys", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

func (d directory) open(attribute string, flags int) (*os.File, error) {
	fd, err := unix.Openat(d.fd, attribute, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), attribute), nil
}

func (d directory) read(attribute string) (string, error) {
	f, err := d.open(attribute, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	return strings.TrimSpace(string(text)), err
}

func (d directory) write(attribute, value string) error {
	f, err := d.open(attribute, unix.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func (d directory) close() error { return unix.Close(d.fd) }
