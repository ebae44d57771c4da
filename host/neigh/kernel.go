package neigh

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/heartbeat"
)

// kernel has the requests to the kernel. Tests replace it, for example by a kernel without 802.1Q,
// or one that loses events.
type kernel interface {
	// topology reads interfaces and addresses.
	topology() (*topology, error)
	// routes reads the routes of all tables, and calls f for each. f must not keep the route, which
	// takes 600 bytes: there may be 300,000.
	routes(f func(*netlink.Route)) error
	// neighbours reads all neighbours of both families.
	neighbours() ([]netlink.Neigh, error)
	// rules reads the policy rules of both families.
	rules() ([]netlink.Rule, error)
	// use makes the kernel resolve or confirm a neighbour, like a packet to it. It does not change
	// an entry in a fixed state, and keeps the owner's flags of all other entries.
	use(dev int, a netip.Addr) error
	// verify makes the kernel send a request to a neighbour's MAC address at once, even if the
	// address was confirmed recently. A neighbour without a MAC address is resolved.
	verify(dev int, a netip.Addr) error
	// events delivers announcements. It is closed when the subscription breaks.
	events() <-chan []event
	close()
}

// topology has the interfaces and addresses of one reading, which routes depend on.
type topology struct {
	links []netlink.Link
	addrs []netlink.Addr
}

// event is one announcement of the kernel.
type event struct {
	kind  eventKind
	neigh netlink.Neigh // for neighbourChanged and neighbourGone
}

type eventKind uint8

const (
	topologyChanged eventKind = iota
	rulesChanged
	neighbourChanged
	neighbourGone
	eventsLost // the kernel dropped announcements (ENOBUFS)
)

// receiveBufferBytes is enough for the announcements when a link with a few thousand neighbours and
// routes goes down. More cause a resync, not an error.
const receiveBufferBytes = 4 << 20

// groups has the rtnetlink multicast groups of the subscription. It has the group of nexthop
// objects, because routes that change with them are not announced.
var groups = [...]uint{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
	unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	unix.RTNLGRP_NEXTHOP,
}

// rtnetlink implements kernel for the network namespace of the thread that called openKernel.
type rtnetlink struct {
	handle  *netlink.Handle
	queries *nl.SocketHandle // for requests that handle has no method for
	socket  *nl.NetlinkSocket
	ch      chan []event
	done    chan struct{}
	once    sync.Once
}

// openKernel subscribes to all that the mirror follows. beat, unless nil, is the heartbeat of what
// reads the subscription.
func openKernel(log *slog.Logger, beat *heartbeat.Beat) (kernel, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	queries, err := nl.Subscribe(unix.NETLINK_ROUTE) // without groups: only a socket in this namespace
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, groups[:]...)
	if err != nil {
		handle.Close()
		queries.Close()
		return nil, fmt.Errorf("subscribe to rtnetlink: %w", err)
	}
	// More than net.core.rmem_max needs CAP_NET_ADMIN; without it events are lost earlier, which
	// causes resyncs.
	if err := socket.SetReceiveBufferSize(receiveBufferBytes, true); err != nil {
		log.Debug("rtnetlink receive buffer stays at its default", "error", err)
	}
	k := &rtnetlink{
		handle: handle, queries: &nl.SocketHandle{Socket: queries}, socket: socket,
		ch: make(chan []event, 16), done: make(chan struct{}),
	}
	go k.receive(log, beat)
	return k, nil
}

func (k *rtnetlink) events() <-chan []event { return k.ch }

func (k *rtnetlink) close() {
	k.once.Do(func() {
		close(k.done)
		k.socket.Close()
		k.queries.Close()
		k.handle.Close()
	})
}

// receive turns messages into events until the socket is closed or breaks. beat is its heartbeat.
func (k *rtnetlink) receive(log *slog.Logger, beat *heartbeat.Beat) {
	defer close(k.ch)
	defer beat.Rest()
	for {
		beat.Rest()
		msgs, from, err := k.socket.Receive()
		beat.Beat()
		var batch []event
		switch {
		case errors.Is(err, unix.ENOBUFS):
			batch = []event{{kind: eventsLost}}
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			select {
			case <-k.done:
			default:
				log.Warn("rtnetlink subscription broke", "error", err)
			}
			return
		case from.Pid != nl.PidKernel:
			continue // any local process may send to a netlink socket
		}
		for i := range msgs {
			if e, ok := decode(msgs[i].Header.Type, msgs[i].Data); ok {
				batch = append(batch, e)
			}
		}
		if len(batch) == 0 {
			continue
		}
		select {
		case k.ch <- batch:
		case <-k.done:
			return
		}
	}
}

func decode(messageType uint16, data []byte) (event, bool) {
	switch messageType {
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		n, err := netlink.NeighDeserialize(data)
		if err != nil {
			return event{kind: eventsLost}, true
		}
		if messageType == unix.RTM_DELNEIGH {
			return event{kind: neighbourGone, neigh: *n}, true
		}
		return event{kind: neighbourChanged, neigh: *n}, true
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return event{kind: rulesChanged}, true
	case unix.NLMSG_NOOP, unix.NLMSG_DONE, unix.NLMSG_ERROR:
		return event{}, false
	}
	return event{kind: topologyChanged}, true
}

func (k *rtnetlink) topology() (*topology, error) {
	var t topology
	var err error
	if t.links, err = k.handle.LinkList(); err != nil {
		return nil, fmt.Errorf("read interfaces: %w", err)
	}
	if t.addrs, err = k.handle.AddrList(nil, netlink.FAMILY_ALL); err != nil {
		return nil, fmt.Errorf("read addresses: %w", err)
	}
	return &t, nil
}

func (k *rtnetlink) routes(f func(*netlink.Route)) error {
	// The library returns tables other than main only with a filter on table "unspecified".
	all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	for _, family := range [...]int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		err := k.handle.RouteListFilteredIter(family, all, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			f(&r)
			return true
		})
		if err != nil {
			return fmt.Errorf("read routes: %w", err)
		}
	}
	return nil
}

func (k *rtnetlink) neighbours() ([]netlink.Neigh, error) {
	var all []netlink.Neigh
	for _, family := range [...]int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		n, err := k.handle.NeighList(0, family)
		if err != nil {
			return nil, fmt.Errorf("read neighbours: %w", err)
		}
		all = append(all, n...)
	}
	return all, nil
}

func (k *rtnetlink) rules() ([]netlink.Rule, error) {
	var all []netlink.Rule
	for _, family := range [...]int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		r, err := k.handle.RuleList(family)
		if err != nil {
			return nil, fmt.Errorf("read policy rules: %w", err)
		}
		all = append(all, r...)
	}
	return all, nil
}

func (k *rtnetlink) use(dev int, a netip.Addr) error {
	// The announcement of an entry may still be in flight, so read the entry from the kernel.
	n, err := k.neighbour(dev, a)
	if err == nil && n.State&fixed == 0 {
		// The kernel clears flags of the entry that the message does not repeat
		// (neigh_update_flags).
		err = k.handle.NeighSet(&netlink.Neigh{
			LinkIndex: dev, IP: a.AsSlice(),
			Flags: netlink.NTF_USE | n.Flags&netlink.NTF_EXT_LEARNED, FlagsExt: n.FlagsExt & netlink.NTF_EXT_MANAGED,
		})
	}
	if err != nil {
		return fmt.Errorf("resolve neighbour %s on interface %d: %w", a, dev, err)
	}
	return nil
}

// verify sets the state NUD_PROBE: the kernel sends a unicast request at once, repeats it each
// second, and marks the entry as failed after the third (net/core/neighbour.c, __neigh_update and
// neigh_timer_handler; ucast_solicit, retrans_time_ms). A packet, or NTF_USE, would not verify an
// entry that is NUD_REACHABLE, for up to 45 s.
//
// The message has no MAC address, so the entry keeps its own. It has no NLM_F_REPLACE or
// NLM_F_CREATE, so an entry that was removed meanwhile is not created, and the router flag stays.
func (k *rtnetlink) verify(dev int, a netip.Addr) error {
	n, err := k.neighbour(dev, a)
	switch {
	case err != nil:
		return fmt.Errorf("verify neighbour %s on interface %d: %w", a, dev, err)
	case n.State&(fixed|netlink.NUD_PROBE) != 0 || n.Flags&netlink.NTF_EXT_LEARNED != 0:
		return nil // another owner maintains the entry, or the kernel is probing it already
	case n.State&valid == 0:
		return k.use(dev, a)
	}
	req := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.queries}
	req.AddData(&netlink.Ndmsg{Family: familyOf(a), Index: uint32(dev), State: netlink.NUD_PROBE})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, a.AsSlice()))
	if managed := n.FlagsExt & netlink.NTF_EXT_MANAGED; managed != 0 { // or the kernel clears it
		req.AddData(nl.NewRtAttr(netlink.NDA_FLAGS_EXT, nl.Uint32Attr(uint32(managed))))
	}
	if _, err = req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("verify neighbour %s on interface %d: %w", a, dev, err)
	}
	return nil
}

func familyOf(a netip.Addr) uint8 {
	if a.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// neighbour reads an entry. Its state is NUD_NONE if there is none.
func (k *rtnetlink) neighbour(dev int, a netip.Addr) (*netlink.Neigh, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.queries}
	req.AddData(&netlink.Ndmsg{Family: familyOf(a), Index: uint32(dev)})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, a.AsSlice()))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	switch {
	case errors.Is(err, unix.ENOENT) || err == nil && len(msgs) == 0:
		return &netlink.Neigh{State: netlink.NUD_NONE}, nil
	case err != nil:
		return nil, err
	}
	return netlink.NeighDeserialize(msgs[0])
}
