package cluster

import (
	"fmt"
	"syscall"

	"sluice.dev/sluice/test/bed/topo"
)

// Freeze stops the control plane's processes (SIGSTOP): it stays as it is, connections
// included, and uses no processor, as if it ran on other machines. Nothing may be asked
// of it until Thaw. Close works either way.
func (c *Cluster) Freeze() error { return c.signal(syscall.SIGSTOP) }

// Thaw lets it go on.
func (c *Cluster) Thaw() error { return c.signal(syscall.SIGCONT) }

func (c *Cluster) signal(s syscall.Signal) error {
	for _, p := range [...]*topo.Process{c.apiServer, c.etcd} {
		if p == nil {
			continue
		}
		if err := p.Signal(s); err != nil {
			return fmt.Errorf("cluster: %s to process %d: %w", s, p.PID(), err)
		}
	}
	return nil
}
