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

// drains are the drains in force.
type drains struct {
	units *units
	addrs *addresses
	set   map[Drain]bool
	// touched are addresses whose drains changed since the last compile.
	touched []header.Addr
}

// Drain removes backends from all sets from the next compile on; their flows stay. It holds until
// Undrain, also for a backend that is deleted and created again. It returns ErrUnknownBackend if no
// service has such a backend.
func (ds *drains) Drain(d Drain) error {
	if ds.Count(d) == 0 {
		return fmt.Errorf("drain %v: %w", d, ErrUnknownBackend)
	}
	ds.set[d] = true
	ds.touched = append(ds.touched, d.Addr)
	return nil
}

// Undrain lets backends take new flows again from the next compile on.
func (ds *drains) Undrain(d Drain) error {
	if !ds.set[d] {
		return fmt.Errorf("%v: %w", d, ErrNotDrained)
	}
	delete(ds.set, d)
	ds.touched = append(ds.touched, d.Addr)
	return nil
}

// Drains returns all drains in force, in order.
func (ds *drains) Drains() []Drain {
	return slices.SortedFunc(maps.Keys(ds.set), func(a, b Drain) int {
		return cmp.Or(a.Addr.Netip().Compare(b.Addr.Netip()), cmp.Compare(a.Port, b.Port))
	})
}

// SetDrains replaces all drains from the next compile on. The list comes from an earlier process,
// so a drain may name a backend that no Service has now.
func (ds *drains) SetDrains(list []Drain) {
	was := ds.set
	ds.set = make(map[Drain]bool, len(list))
	for _, d := range list {
		if ds.set[d] = true; !was[d] {
			ds.touched = append(ds.touched, d.Addr)
		}
	}
	for d := range was {
		if !ds.set[d] {
			ds.touched = append(ds.touched, d.Addr)
		}
	}
}

// Count returns the number of backends that d names.
func (ds *drains) Count(d Drain) (n int) {
	ds.addrs.uses.each(d.Addr, func(num int32) {
		for _, p := range ds.units.byNum[num].ports {
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

// has reports whether an endpoint is drained.
func (ds *drains) has(a header.Addr, port uint16) bool {
	return len(ds.set) > 0 && (ds.set[Drain{a, 0}] || ds.set[Drain{a, port}])
}

// markUnits makes the units dirty whose endpoints are at addresses with changed drains.
func (ds *drains) markUnits() {
	for _, a := range ds.touched {
		ds.addrs.uses.each(a, ds.units.reread)
	}
	ds.touched = nil
}
