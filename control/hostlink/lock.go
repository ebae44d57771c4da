package hostlink

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrInUse is returned by Ensure if another process of this network namespace has
// the host link. Nothing was changed.
var ErrInUse = errors.New("another gateway uses it: stop that one, or give this one a host link (both names, other " +
	"addresses), interfaces and a BPF file system of its own")

// lock makes the pair this process's own. It is a name in the abstract namespace of Unix sockets,
// which is one per network namespace, as interfaces are, and which ends with the process (unix(7)).
// It is no *os.File, because the garbage collector closes those.
//
// Any user of the node may bind such a name. One that is bound by another user than root and this
// process's locks nothing: otherwise he could keep the gateway from starting. While he has it there
// is no lock, which is for two gateways that have another stateDir each and the same host link.
type lock struct{ fd int }

func lockName(link string) string { return "@sluice-hostlink-" + link }

// takeLock returns nil without an error if this process has the lock already, as Ensure
// may be called again, or if another user has the name.
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
	locked, err := boundByAnother(lockName(link))
	if err != nil {
		return nil, fmt.Errorf("lock %s: whose is it: %w", lockName(link), err)
	}
	if locked {
		return nil, fmt.Errorf("%w (`ss -xap src %s` shows its process)", ErrInUse, lockName(link))
	}
	return nil, nil
}

// LockFD is the descriptor of the lock, for another process: with it Ensure finds the lock to be
// that process's own. It is -1 if this HostLink has none: an earlier one of this process may.
func (h *HostLink) LockFD() int {
	if h.lock == nil {
		return -1
	}
	return h.lock.fd
}

func (l *lock) release() {
	if l != nil {
		unix.Close(l.fd)
	}
}

// boundByAnother reports whether a socket of another process, of root or this process's user, has a
// name in this network namespace.
func boundByAnother(name string) (bool, error) {
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
			return false, nil
		}
	}
	number, err := strconv.ParseUint(inode, 10, 32)
	if err != nil {
		return false, err
	}
	uid, err := ownerOf(uint32(number))
	if errors.Is(err, unix.ENOENT) { // it was closed
		return false, nil
	}
	return uid == 0 || int(uid) == os.Geteuid(), err
}

// What a unix_diag_req asks, and the attribute that answers (linux/unix_diag.h).
const (
	showUID = 0x40 // UDIAG_SHOW_UID
	diagUID = 7    // UNIX_DIAG_UID
	msgSize = 16   // of unix_diag_msg, before the attributes
)

// ownerOf returns the user who made a Unix socket of this network namespace.
func ownerOf(inode uint32) (uid uint32, err error) {
	ask := make(diagRequest, 24)
	ask[0] = unix.AF_UNIX
	for at, v := range map[int]uint32{4: 1<<32 - 1, 8: inode, 12: showUID, 16: 1<<32 - 1, 20: 1<<32 - 1} {
		binary.NativeEndian.PutUint32(ask[at:], v) // states, inode, show, and no cookie
	}
	r := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, 0)
	r.AddData(ask)
	answers, err := r.Execute(unix.NETLINK_INET_DIAG, 0)
	if err != nil {
		return 0, err
	}
	for _, m := range answers {
		if len(m) < msgSize {
			continue
		}
		attributes, err := nl.ParseRouteAttr(m[msgSize:])
		if err != nil {
			return 0, err
		}
		for _, a := range attributes {
			if a.Attr.Type == diagUID && len(a.Value) >= 4 {
				return binary.NativeEndian.Uint32(a.Value), nil
			}
		}
	}
	return 0, nil // a kernel before 5.3 does not say: as if it were root's
}

type diagRequest []byte

func (r diagRequest) Len() int          { return len(r) }
func (r diagRequest) Serialize() []byte { return r }

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
