package hostlink

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrInUse is returned by Ensure if another process of this network namespace has
// the host link. Nothing was changed.
var ErrInUse = errors.New("another gateway uses it: stop that one, or give this one a host link (both names, other " +
	"addresses), interfaces and a BPF file system of its own")

// lock makes the pair this process's own. It is a name in the abstract namespace of Unix sockets,
// which is one per network namespace, as interfaces are, and which ends with the process (unix(7)).
// It is no *os.File, because the garbage collector closes those.
type lock struct{ fd int }

func lockName(link string) string { return "@sluice-hostlink-" + link }

// takeLock returns nil without an error if this process has the lock already: Ensure
// may be called again.
func takeLock(link string) (*lock, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: lockName(link)})
	if err == nil {
		return &lock{fd}, nil
	}
	unix.Close(fd)
	if !errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("lock %s: %w", lockName(link), err)
	}
	ours, err := boundByUs(lockName(link))
	if err != nil {
		return nil, fmt.Errorf("lock %s: whose is it: %w", lockName(link), err)
	}
	if !ours {
		return nil, fmt.Errorf("%w (`ss -xap src %s` shows its process)", ErrInUse, lockName(link))
	}
	return nil, nil
}

func (l *lock) release() {
	if l != nil {
		unix.Close(l.fd)
	}
}

// boundByUs reports whether a socket of this process has a name in this network namespace.
func boundByUs(name string) (bool, error) {
	inode, err := inodeOf(name)
	if inode == "" || err != nil {
		return false, err
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return false, err
	}
	for _, fd := range open {
		to, err := os.Readlink(filepath.Join("/proc/self/fd", fd.Name()))
		if err == nil && to == "socket:["+inode+"]" {
			return true, nil
		}
	}
	return false, nil
}

// inodeOf finds a socket in the table of proc(5), whose last two columns are the
// inode and the name.
func inodeOf(name string) (string, error) {
	f, err := os.Open("/proc/thread-self/net/unix")
	if err != nil {
		return "", err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		columns := strings.Fields(lines.Text())
		if n := len(columns); n >= 2 && columns[n-1] == name {
			return columns[n-2], nil
		}
	}
	return "", lines.Err()
}
