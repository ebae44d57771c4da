package compiler

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

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
	// ErrUnknownBackend is returned by Drain for an address and port that no endpoint has now.
	ErrUnknownBackend = errors.New("no service has such a backend")
	// ErrNotDrained is returned by Undrain for an address and port without a Drain.
	ErrNotDrained = errors.New("is not drained; undrain takes the same address, or address and port, as drain did")
)

// Drain leaves backends out of all sets from the next compile on; their flows stay. It holds until
// Undrain, also for a backend that is deleted and created again.
func (c *Compiler) Drain(d Drain) error {
	if c.Count(d) == 0 {
		return fmt.Errorf("drain %v: %w", d, ErrUnknownBackend)
	}
	c.drains[d] = true
	c.touched = append(c.touched, d.Addr)
	return nil
}

// Undrain lets backends take new flows again from the next compile on.
func (c *Compiler) Undrain(d Drain) error {
	if !c.drains[d] {
		return fmt.Errorf("%v: %w", d, ErrNotDrained)
	}
	delete(c.drains, d)
	c.touched = append(c.touched, d.Addr)
	return nil
}

// Drains returns all drains in force, in order.
func (c *Compiler) Drains() []Drain {
	return slices.SortedFunc(maps.Keys(c.drains), func(a, b Drain) int {
		return cmp.Or(a.Addr.Netip().Compare(b.Addr.Netip()), cmp.Compare(a.Port, b.Port))
	})
}

// SetDrains replaces all drains from the next compile on, also by drains that no endpoint has now:
// those of a predecessor.
func (c *Compiler) SetDrains(list []Drain) {
	was := c.drains
	c.drains = make(map[Drain]bool, len(list))
	for _, d := range list {
		if c.drains[d] = true; !was[d] {
			c.touched = append(c.touched, d.Addr)
		}
	}
	for d := range was {
		if !c.drains[d] {
			c.touched = append(c.touched, d.Addr)
		}
	}
}

// Count returns the number of backends that d names.
func (c *Compiler) Count(d Drain) (n int) {
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
