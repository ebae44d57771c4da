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
	// keepMAC is for how long frames to an address that the device no longer has are still
	// accepted: neighbours learn the new address after the device has it (RFC 5227 section 2.3, RFC
	// 4861 section 7.2.6).
	keepMAC = time.Second
	// relistAfter is how often interfaces are listed without a notification.
	relistAfter = 10 * time.Second
	// restPerReading bounds the listing of interfaces to a tenth of a core.
	restPerReading = 9
)

// linkList has the interfaces of this network namespace, as last listed. Only the watcher uses it.
type linkList struct {
	links    []netlink.Link
	listedAt time.Time
}

// watchLinks returns a channel that receives after interfaces changed. Without a subscription it
// stays empty, and Watch finds the changes by its periodic looks.
func (s *Set) watchLinks(ctx context.Context) <-chan struct{} {
	changed := wake.NewFlag()
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		s.log.Warn("changes of interfaces are detected late", "error", err)
		return changed
	}
	s.notified.Store(true)
	s.linkNews.Add(1) // changes before the subscription get no notification
	context.AfterFunc(ctx, socket.Close)
	go func() {
		defer s.notified.Store(false)
		defer s.linkBeat.Rest()
		for {
			s.linkBeat.Rest()
			_, _, err := socket.Receive()
			s.linkBeat.Beat()
			if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
				if ctx.Err() == nil {
					s.log.Warn("changes of interfaces are detected late from now on", "error", err)
				}
				return
			}
			s.linkNews.Add(1)
			changed.Raise()
		}
	}()
	return changed
}

// linksChanged handles a notification. It returns the time that it took.
func (s *Set) linksChanged() (took time.Duration) {
	began := time.Now()
	s.links = linkList{}
	s.followAll(began)
	return time.Since(began)
}

// followAll passes the present destinations of each open port's device to its program.
func (s *Set) followAll(now time.Time) {
	for _, p := range s.ports {
		s.followDestinations(p, now)
	}
}

// followDestinations passes the present destinations of a port's device to its program, and the MAC
// addresses that the device had a moment ago. If they cannot be read, nothing changes.
func (s *Set) followDestinations(p *port, now time.Time) {
	if p.host { // the host link's program accepts every frame
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
			s.log.Debug("MAC addresses are not updated", "error", err)
			return
		}
		s.links = linkList{links, now}
	}
	read, err := readDestinations(p.device.Index, s.links.links)
	if err != nil {
		s.log.Debug("MAC addresses are not updated", "interface", p.name, "error", err)
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
	if err != nil && next.unknown == "" { // accepting every frame is better than accepting the wrong ones
		next = destinations{unknown: err.Error()}
		err = p.attach.SetDestinations(next.Destinations)
	}
	if err != nil {
		s.log.Warn("MAC addresses are not updated", "interface", p.name, "error", err)
		return
	}
	if next.unknown != "" && next.unknown != p.destinations.unknown {
		s.log.Warn("frames for any MAC address and VLAN are accepted", "interface", p.name, "why", next.unknown)
	}
	p.destinations = next
}

// withKnown adds the addresses that the device lost less than keepMAC ago, as far as there is room.
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

// sameDestinations reports whether a and b accept the same frames. The order matters only for the
// first address.
func sameDestinations(a, b *destinations) bool {
	return a.unknown == b.unknown && len(a.MACs) == len(b.MACs) && len(a.VLANs) == len(b.VLANs) &&
		(len(a.MACs) == 0 || a.MACs[0] == b.MACs[0]) && containsAll(a.MACs, b.MACs) && containsAll(a.VLANs, b.VLANs)
}

func containsAll[T comparable](list, of []T) bool {
	return !slices.ContainsFunc(of, func(v T) bool { return !slices.Contains(list, v) })
}
