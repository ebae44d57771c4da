//go:build root

package unixsocket

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestShareAdmitsGroup: a user of the group connects, and a user of another group does not.
func TestShareAdmitsGroup(t *testing.T) {
	const group, stranger = 54321, 54322
	above, err := os.MkdirTemp("/dev/shm", "sluice-") // every user may pass it, unlike os.TempDir
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(above)
	if err := os.Chmod(above, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(above, "d", "s")
	s, err := Share(path, group)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Publish(); err != nil {
		t.Fatal(err)
	}
	for gid, want := range map[int]error{group: nil, stranger: fs.ErrPermission} {
		if err := dialAs(gid, path); !errors.Is(err, want) {
			t.Errorf("group %d: %v, want %v", gid, err, want)
		}
	}
}

// dialAs connects as a user other than root with one group.
func dialAs(gid int, path string) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its identity
		if err := unix.Setfsgid(gid); err != nil {
			result <- err
			return
		}
		if err := unix.Setfsuid(gid); err != nil { // clears the capabilities about files (capabilities(7))
			result <- err
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
			unix.Close(fd)
		}
		result <- err
	}()
	return <-result
}
