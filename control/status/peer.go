package status

import (
	"fmt"
	"net"
	"net/http"

	"sluice.dev/sluice/internal/unixsocket"
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
	cred, err := unixsocket.Peer(conn)
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
	cred, err := unixsocket.Peer(conn)
	if err != nil {
		return []any{"by", err.Error()}
	}
	return []any{"uid", cred.Uid, "pid", cred.Pid}
}
