package ports

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/wake"
	"sluice.dev/sluice/xdpprog"
)

const (
	// keepMAC is how long frames are taken for an address that is one no more: neighbours learn the
	// new one after the device has it (RFC 5227 section 2.3, RFC 4861 section 7.2.6).
	keepMAC = time.Second
	// relistAfter is how often interfaces are listed without a notification.
	relistAfter = 10 * time.Second
	// restPerReading bounds listing interfaces to a tenth of a core.
	restPerReading = 9
)

// linkList is the interfaces of this network namespace, as they were listed last. It is the
// watcher's.
type linkList struct {
	links    []netlink.Link
	listedAt time.Time
}

// watchLinks returns a channel that has something after interfaces changed. Without a subscription
// it stays empty, and changes are found by the watcher's looks.
func (s *Set) watchLinks(ctx context.Context) <-chan struct{} {
	changed := wake.NewFlag()
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		s.log.Warn("changes of interfaces are noticed late", "error", err)
		return changed
	}
	s.told.Store(true)
	s.linkNews.Add(1) // what changed before is told no more
	context.AfterFunc(ctx, socket.Close)
	go func() {
		defer s.told.Store(false)
		defer s.linkBeat.Rest()
		for {
			s.linkBeat.Rest()
			_, _, err := socket.Receive()
			s.linkBeat.Beat()
			if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
				if ctx.Err() == nil {
					s.log.Warn("changes of interfaces are noticed late from now on", "error", err)
				}
				return
			}
			s.linkNews.Add(1)
			changed.Raise()
		}
	}()
	return changed
}

// linksChanged follows a notification. It returns how long that took.
func (s *Set) linksChanged() (took time.Duration) {
	began := time.Now()
	s.links = linkList{}
	s.followAll(began)
	return time.Since(began)
}

// followAll gives each open port the destinations that its device has now.
func (s *Set) followAll(now time.Time) {
	for _, p := range s.ports {
		s.followDestinations(p, now)
	}
}

// followDestinations gives a port's program the destinations that the device has now, and the MAC
// addresses that it had a moment ago. What cannot be read stays as it is.
func (s *Set) followDestinations(p *port, now time.Time) {
	if p.host { // its program takes every frame
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.attach == nil {
		return
	}
	if s.links.links == nil || now.Sub(s.links.listedAt) >= relistAfter {
		links, err := listLinks()
		if err != nil {
			s.log.Debug("MAC addresses stay as they are", "error", err)
			return
		}
		s.links = linkList{links, now}
	}
	read, err := readDestinations(p.device.Index, s.links.links)
	if err != nil {
		s.log.Debug("MAC addresses stay as they are", "interface", p.name, "error", err)
		return
	}
	s.take(p, read, now)
}

// take puts destinations in force. p.mu must be held.
func (s *Set) take(p *port, read destinations, now time.Time) {
	next := p.withKnown(read, now)
	if sameDestinations(&next, &p.destinations) {
		return
	}
	err := p.attach.SetDestinations(next.Destinations)
	if err != nil && next.unknown == "" { // every frame is better than the wrong ones
		next = destinations{unknown: err.Error()}
		err = p.attach.SetDestinations(next.Destinations)
	}
	if err != nil {
		s.log.Warn("MAC addresses stay as they are", "interface", p.name, "error", err)
		return
	}
	if next.unknown != "" && next.unknown != p.destinations.unknown {
		s.log.Warn("frames for any MAC address and VLAN are taken", "interface", p.name, "why", next.unknown)
	}
	p.destinations = next
}

// withKnown adds the addresses that were found gone less than keepMAC ago, as far as there is room.
func (p *port) withKnown(d destinations, now time.Time) destinations {
	if d.unknown != "" {
		return d
	}
	if p.known == nil {
		p.known = make(map[xdpprog.MAC]time.Time)
	}
	for _, m := range d.MACs {
		p.known[m] = time.Time{}
	}
	var old []xdpprog.MAC
	for m, gone := range p.known {
		switch {
		case slices.Contains(d.MACs, m):
			continue
		case gone.IsZero():
			p.known[m] = now
		case now.Sub(gone) >= keepMAC:
			delete(p.known, m)
			continue
		}
		old = append(old, m)
	}
	d.MACs = slices.Concat(d.MACs, old[:min(len(old), xdpprog.MaxMACs-len(d.MACs))])
	return d
}

// sameDestinations reports whether two take the same frames. Only the order of the first address
// matters.
func sameDestinations(a, b *destinations) bool {
	return a.unknown == b.unknown && len(a.MACs) == len(b.MACs) && len(a.VLANs) == len(b.VLANs) &&
		(len(a.MACs) == 0 || a.MACs[0] == b.MACs[0]) && containsAll(a.MACs, b.MACs) && containsAll(a.VLANs, b.VLANs)
}

func containsAll[T comparable](list, of []T) bool {
	return !slices.ContainsFunc(of, func(v T) bool { return !slices.Contains(list, v) })
}
