package topo

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
)

// Outside is the caller's own namespace as the only host of a network: for processes
// that belong to no segment, such as a control plane. They are started, tagged and ended like the
// processes of any host. The namespace itself is neither made nor removed.
func Outside() (*Net, *Host, error) {
	var id [4]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, nil, fmt.Errorf("topo: %w", err)
	}
	n := &Net{ID: hex.EncodeToString(id[:])}
	h := &Host{Name: "outside", net: n, ns: &namespace{}}
	n.hosts = append(n.hosts, h)
	err := onOwnThread(func() (err error) {
		h.ns.file, err = currentNamespace()
		return err
	})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("topo: hold this namespace: %w", err), n.Close())
	}
	return n, h, nil
}
