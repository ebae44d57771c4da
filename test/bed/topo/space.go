package topo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sluice.dev/sluice/host/nic/ethtool"
)

// Space is a bare network namespace: nobody's host, no addresses. Code that only needs a wire
// between two namespaces uses it, without a bridge in between.
type Space struct{ ns *namespace }

// NewSpace makes a namespace without a name. It ends with the process at the latest.
func NewSpace() (*Space, error) {
	ns, err := newNamespace("")
	if err != nil {
		return nil, fmt.Errorf("topo: %w", err)
	}
	return &Space{ns: ns}, nil
}

// OpenSpace enters a namespace that somebody else made and ip-netns(8) lists. Close
// does not remove it.
func OpenSpace(name string) (*Space, error) {
	f, err := os.Open(filepath.Join(netnsDir, name))
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w (`ip netns` lists those there are)", name, err)
	}
	return &Space{ns: &namespace{file: f}}, nil
}

// Run calls f on a thread in the namespace. Goroutines that f starts are not in it.
func (s *Space) Run(f func() error) error { return s.ns.run(f) }

// Close lets go of the namespace.
func (s *Space) Close() error { return s.ns.close() }

// Connect joins two spaces by a veth pair, up on both sides, offloads off, without IPv6
// (whose neighbour discovery would send packets of its own).
func Connect(a *Space, devA string, b *Space, devB string, queues, mtu int) error {
	if err := a.Run(func() error { return addVeth(devA, b.ns, devB, queues, mtu) }); err != nil {
		return fmt.Errorf("topo: %w", err)
	}
	quiet := func(dev string) func() error {
		return func() error {
			if err := sysctl("net/ipv6/conf/"+dev+"/disable_ipv6", "1"); err != nil {
				return err
			}
			return errors.Join(ethtool.OffloadsOff(dev), bringUp(dev))
		}
	}
	return errors.Join(a.Run(quiet(devA)), b.Run(quiet(devB)))
}
