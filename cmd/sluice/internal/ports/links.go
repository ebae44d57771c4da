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

// Links returns whether packets can pass, in the order of the configuration, the host link last. A
// device is read again once there is news. One goroutine at a time may call it.
func (s *Set) Links() (list []Link) {
	news := s.linkNews.Load() // before the devices are read
	for _, p := range s.ports {
		list = append(list, Link{p.name, p.host, p.blocked(news)})
	}
	return list
}

// passing is what was read of a device.
type passing struct {
	index int
	news  uint64 // read after so much news
	why   string // no packet can pass it
}

// blocked returns why nothing can pass the port; empty if packets can.
func (p *port) blocked(news uint64) string {
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
	if r := p.passing; r.index != index || r.news != news {
		p.passing = passing{index, news, devices.Blocked(index, p.name)}
	}
	return p.passing.why
}
