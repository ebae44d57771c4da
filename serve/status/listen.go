package status

import (
	"errors"
	"fmt"
	"net"

	"sluice.dev/sluice/internal/unixsocket"
)

// ErrInUse is returned by Listen when another process answers on the socket.
var ErrInUse = errors.New("another sluice daemon answers on the status socket")

// Listen makes the unix socket (unixsocket.Listen).
func Listen(path string) (net.Listener, error) {
	l, err := unixsocket.Listen(path)
	if errors.Is(err, unixsocket.ErrInUse) {
		return nil, fmt.Errorf("%w %s; stop it, or give this one its own stateDir", ErrInUse, path)
	}
	if err != nil {
		return nil, fmt.Errorf("status socket: %w", err)
	}
	return l, nil
}
