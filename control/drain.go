package control

import (
	"errors"
	"fmt"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// Drain names backends that get no new flows; Port 0 is all ports of the address.
type Drain struct {
	Addr header.Addr `json:"addr"`
	Port uint16      `json:"port,omitempty"`
}

// String prints the address, with the port if there is one.
func (d Drain) String() string {
	if d.Port == 0 {
		return d.Addr.String()
	}
	return fmt.Sprintf("%v port %d", d.Addr, d.Port)
}

var (
	// ErrUnknownBackend: drain was asked for an address and port that no endpoint has now.
	ErrUnknownBackend = errors.New("no service has such a backend")
	// ErrNotDrained: undrain was asked for an address and port that drain was not.
	ErrNotDrained = errors.New("was not drained in these words")
)

// Drain leaves backends out of all sets; their flows live on. It takes effect
// with the next compile of the units that have them, and holds until Undrain,
// also for a backend that goes and comes back.
func (c *Compiler) Drain(d Drain) error {
	if c.count(d) == 0 {
		return fmt.Errorf("drain %v: %w", d, ErrUnknownBackend)
	}
	c.drains[d] = true
	return nil
}

// Undrain lets backends take new flows again.
func (c *Compiler) Undrain(d Drain) error {
	if !c.drains[d] {
		return fmt.Errorf("%v: %w", d, ErrNotDrained)
	}
	delete(c.drains, d)
	return nil
}

// recompile builds the units that have endpoints at an address.
func (c *Compiler) recompile(a header.Addr) (*services.Snapshot, []Problem, *Steer) {
	r := c.begin()
	c.uses.each(a, func(num int32) { r.dirty[c.byNum[num]] = true })
	return r.finish()
}

// count counts the backends that d names.
func (c *Compiler) count(d Drain) (n int) {
	c.uses.each(d.Addr, func(num int32) {
		for _, p := range c.byNum[num].ports {
			for f := range p.families {
				for _, m := range p.families[f].members {
					if m.addr == d.Addr && (d.Port == 0 || d.Port == m.port) {
						n++
					}
				}
			}
		}
	})
	return n
}
