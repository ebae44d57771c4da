package stateless

import (
	"errors"
	"fmt"

	"sluice.dev/sluice/test/bed/topo"
)

// Loopback is a veth pair between two network namespaces of its own: a place to
// try everything without a network.
type Loopback struct {
	A, B   Port
	spaces [2]*topo.Space
}

// loopbackMTU lets frames of 3000 bytes pass, and is what veth allows with an XDP
// program on the peer.
const loopbackMTU = 3000

// NewLoopback makes one with the given number of queues on each side.
func NewLoopback(queues int) (*Loopback, error) {
	if queues < 1 || queues > maxQueues {
		return nil, fmt.Errorf("loopback with %d queues: want 1 to %d", queues, maxQueues)
	}
	l := &Loopback{}
	for i := range l.spaces {
		s, err := topo.NewSpace()
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l.spaces[i] = s
	}
	const a, b = "tx0", "rx0"
	if err := topo.Connect(l.spaces[0], a, l.spaces[1], b, queues, loopbackMTU); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l.A, l.B = Port{Interface: a, Namespace: l.spaces[0]}, Port{Interface: b, Namespace: l.spaces[1]}
	return l, nil
}

// Close removes the pair and the namespaces.
func (l *Loopback) Close() error {
	var errs []error
	for _, s := range l.spaces {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	l.spaces = [2]*topo.Space{}
	return errors.Join(errs...)
}
