package ports

import (
	"cmp"
	"slices"

	"sluice.dev/sluice/cmd/sluice/internal/devices"
)

// Link is whether packets can pass a port.
type Link struct {
	Name string
	Host bool   // the user-space end of the host link
	Why  string // nothing can pass it; empty if packets can
}

// Links reads whether packets can pass, in the order of the configuration, the host link last.
func (s *Set) Links() (list []Link) {
	for _, p := range s.ports {
		list = append(list, Link{p.name, p.host, p.blocked()})
	}
	return list
}

// blocked returns why nothing can pass the port; empty if packets can.
func (p *port) blocked() string {
	p.mu.Lock()
	open, why, index := p.open, p.why, p.device.Index
	p.mu.Unlock()
	bound := func(sl *slot) bool { return sl.socket.Load() != nil }
	switch {
	case !open:
		return "is not open: " + cmp.Or(why, "its sockets are being bound")
	case !slices.ContainsFunc(p.slots, bound):
		return "has no socket on any queue"
	}
	return devices.Blocked(index, p.name)
}
