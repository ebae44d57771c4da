package status

import (
	"fmt"
	"net"
	"net/http"

	"sluice.dev/sluice/internal/unixsocket"
)

// PeerPID is unixsocket.Listener of a status socket.
func PeerPID(path string) (int, error) {
	pid, err := unixsocket.Listener(path)
	if err != nil {
		return 0, fmt.Errorf("status socket: %w", err)
	}
	return pid, nil
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// asker returns, for the log, the sender of a request: user and process, which the kernel recorded
// when the connection was made. Process 0 is in a PID namespace that this process cannot see.
func asker(r *http.Request) []any {
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	cred, err := unixsocket.Peer(conn)
	if err != nil {
		return []any{"by", err.Error()}
	}
	return []any{"uid", cred.Uid, "pid", cred.Pid}
}
