package status

import (
	"fmt"
	"net"
	"net/http"

	"golang.org/x/sys/unix"
)

// PeerPID returns the process that listens on a unix socket, as the kernel has it (SO_PEERCRED,
// unix(7)); 0 for one of a PID namespace that this process does not see, such as another
// container's. The process need not answer.
func PeerPID(path string) (int, error) {
	conn, err := net.DialTimeout("unix", path, dialTimeout)
	if err != nil {
		return 0, fmt.Errorf("status socket: %w", err)
	}
	defer conn.Close()
	cred, err := peer(conn)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// asker returns for the log who sent a request: user and process, as the kernel has them from when
// the connection was made. Process 0 is one of a PID namespace that this process does not see.
func asker(r *http.Request) []any {
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	cred, err := peer(conn)
	if err != nil {
		return []any{"by", err.Error()}
	}
	return []any{"uid", cred.Uid, "pid", cred.Pid}
}

// peer returns who is at the other end of a unix socket: who connected, or who listens.
func peer(conn net.Conn) (cred *unix.Ucred, err error) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("%T is no unix socket", conn)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	failed := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if failed != nil {
		err = failed
	}
	return cred, err
}
