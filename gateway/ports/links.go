package ports

import (
	"cmp"
	"slices"

	"sluice.dev/sluice/host/nic/devices"
)

// Link is the state of a port: whether packets can pass it.
type Link struct {
	Name string
	Host bool   // the user-space end of the host link
	Why  string // why no packet can pass it; empty if packets can
}

// Links returns the state of the ports, in the order of the configuration, the host link last. With
// anew it reads each device; otherwise it reads a device that passed packets at the last reading
// only if the kernel has sent a notification about a link since. One goroutine at a time may call
// it.
func (s *Set) Links(anew bool) (list []Link) {
	news := s.linkNews.Load() // before the devices are read
	anew = anew || !s.notified.Load()
	for _, p := range s.ports {
		list = append(list, Link{p.name, p.host, p.blocked(news, anew)})
	}
	return list
}

// reading records the reading of a device.
type reading struct {
	index int    // of the device
	news  uint64 // Set.linkNews before it was read
}

// blocked returns why no packet can pass the port; empty if packets can.
func (p *port) blocked(news uint64, anew bool) string {
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
	now := reading{index, news}
	if !anew && p.passed == now {
		return ""
	}
	why, err := devices.Blocked(index, p.name)
	switch {
	case err != nil && !devices.Absent(err) && p.passed.index == index:
		return "" // unchanged since the last reading; the next call reads it again
	case err != nil:
		why = "cannot be read: " + err.Error()
	}
	p.passed = reading{}
	if why == "" {
		p.passed = now
	}
	return why
}
