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

// ErrInUse is returned by Ensure if another process of this network namespace has the host link.
// Nothing was changed.
var ErrInUse = errors.New("another gateway uses it: stop that one, or give this one a host link (both names, other " +
	"addresses), interfaces and a BPF file system of its own")

// lock marks the pair as this process's. It is a socket bound to a name in the abstract namespace
// of Unix sockets, which each network namespace has for itself, like interfaces. It ends with the
// process (unix(7)). It is not an *os.File, because the garbage collector would close it.
//
// Any user of the node may bind such a name. A name bound by a user other than root and this
// process's user is ignored: otherwise that user could prevent the gateway from starting. While
// such a user has the name there is no lock, which would exclude a second gateway with another
// stateDir and the same host link.
type lock struct{ fd int }

func lockName(link string) string { return "@sluice-hostlink-" + link }

// takeLock returns nil without an error if this process has the lock already (Ensure may be called
// again), or if another user has the name.
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
		return nil, fmt.Errorf("lock %s: find its owner: %w", lockName(link), err)
	}
	if locked {
		return nil, fmt.Errorf("%w (`ss -xap src %s` shows its process)", ErrInUse, lockName(link))
	}
	return nil, nil
}

// LockFD returns the lock's descriptor, for handing it to another process: Ensure in that process
// then finds that it has the lock. It is -1 if this HostLink has no lock: an earlier one of this
// process may have it.
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

// boundByAnother reports whether a socket of another process, owned by root or this process's user,
// has a name in this network namespace.
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
	if errors.Is(err, unix.ENOENT) { // the socket was closed
		return false, nil
	}
	return uid == 0 || int(uid) == os.Geteuid(), err
}

// Fields of unix_diag_req and unix_diag_msg (linux/unix_diag.h).
const (
	showUID = 0x40 // UDIAG_SHOW_UID
	diagUID = 7    // UNIX_DIAG_UID
	msgSize = 16   // of unix_diag_msg, before the attributes
)

// ownerOf returns the user that created a Unix socket of this network namespace.
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
	return 0, nil // a kernel before 5.3 has no such attribute: assume root
}

type diagRequest []byte

func (r diagRequest) Len() int          { return len(r) }
func (r diagRequest) Serialize() []byte { return r }

// inodeOf returns the inode of a socket with a name, from the table in proc(5), whose last two
// columns are the inode and the name.
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
