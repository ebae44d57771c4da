//go:build root

package trusted

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// stranger is a user other than root and the user of the test.
const stranger = 12345

// TestOwner: a file or directory of another user is rejected, anywhere on the path, and a device is
// not opened.
func TestOwner(t *testing.T) {
	chown := func(t *testing.T, path string) { must(t, os.Lchown(path, stranger, stranger)) }
	cases := []refusal{
		{"a file of another user", func(t *testing.T, dir string) string {
			file(t, filepath.Join(dir, "f"), 0o644)
			chown(t, filepath.Join(dir, "f"))
			return filepath.Join(dir, "f")
		}, "belongs to user 12345"},
		{"a directory of another user", func(t *testing.T, dir string) string {
			directoryOf(t, filepath.Join(dir, "d"), 0o755)
			file(t, filepath.Join(dir, "d/f"), 0o600)
			chown(t, filepath.Join(dir, "d"))
			return filepath.Join(dir, "d/f")
		}, "/d belongs to user 12345"},
		{"a sticky directory of another user above", func(t *testing.T, dir string) string {
			directoryOf(t, filepath.Join(dir, "d"), 0o777|os.ModeSticky)
			directoryOf(t, filepath.Join(dir, "d/e"), 0o700)
			file(t, filepath.Join(dir, "d/e/f"), 0o600)
			chown(t, filepath.Join(dir, "d"))
			return filepath.Join(dir, "d/e/f")
		}, "/d belongs to user 12345"},
		{"a device", func(t *testing.T, dir string) string {
			must(t, unix.Mknod(filepath.Join(dir, "f"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
			return filepath.Join(dir, "f")
		}, "is a device, not a regular file"},
	}
	link := refusal{"another user's link in a sticky directory", func(t *testing.T, dir string) string {
		directoryOf(t, filepath.Join(dir, "real"), 0o755)
		file(t, filepath.Join(dir, "real/f"), 0o600)
		directoryOf(t, filepath.Join(dir, "d"), 0o777|os.ModeSticky)
		must(t, os.Symlink("../real", filepath.Join(dir, "d/link")))
		chown(t, filepath.Join(dir, "d/link"))
		return filepath.Join(dir, "d/link/f")
	}, "/d/link belongs to user 12345"}
	t.Run("state", func(t *testing.T) {
		refuse(t, cases, func(path string) error { _, err := ReadState(path); return err })
	})
	t.Run("of an operator", func(t *testing.T) {
		refuse(t, append(cases, link), func(path string) error { _, err := Open(path); return err })
	})
	t.Run("socket", func(t *testing.T) {
		refuse(t, []refusal{{"a socket of another user", func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "s")
			must(t, unix.Mknod(path, unix.S_IFSOCK|0o600, 0))
			chown(t, path)
			return path
		}, "belongs to user 12345"}}, Socket)
	})
}

// TestReadOnlyMount: kubelet makes the directory of a ConfigMap with mode 0777 and mounts it
// read-only, which is trusted. The same directory on a writable mount is not.
func TestReadOnlyMount(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with its namespace
	must(t, unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS))
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	dir := sandbox(t)
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0777"))
	defer func() { must(t, unix.Unmount(dir, 0)) }()
	key := configMap(t, dir)
	var r *Refusal
	if _, err := Open(key); !errors.As(err, &r) || !strings.Contains(err.Error(), "mode 0777") {
		t.Errorf("on a mount that can be written: %v", err)
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	reads(t, key)
	must(t, Directory(dir))
}
