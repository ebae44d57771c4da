package topo

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

// Impairment describes the damage, loss and delay that a wire adds (tc-netem(8)). Shares are in
// percent.
type Impairment struct {
	Loss, Duplicate float32
	Reorder         float32 // sent at once, while all others wait for Delay
	Corrupt         float32 // one bit of the packet is another
	Delay           time.Duration
}

// waiting is how many packets a wire may hold that are delayed.
const waiting = 10_000

// Impair has the wires between the gateway and all other hosts treat packets so, in both
// directions, until Repair.
//
// The wires of the gateway itself stay as they are: packets sent by AF_XDP bypass queueing
// disciplines. So a host's end delays packets to the gateway, and the bridge's end packets from it.
// Neighbours are made permanent first: ARP has no checksum, and a damaged answer would cut a host
// off for half a minute.
func (n *Net) Impair(i Impairment) error {
	if n.wire == nil {
		return errors.New("topo: impair: a direct network has no wires apart from the gateway's")
	}
	if err := n.fixNeighbours(); err != nil {
		return fmt.Errorf("topo: impair: %w", err)
	}
	return n.onWires(func(dev string) error {
		link, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		qdisc := netlink.NewNetem(netlink.QdiscAttrs{
			LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT,
		}, netlink.NetemQdiscAttrs{
			Latency: uint32(i.Delay.Microseconds()), Limit: waiting,
			Loss: i.Loss, Duplicate: i.Duplicate, ReorderProb: i.Reorder, CorruptProb: i.Corrupt,
		})
		if err := netlink.QdiscReplace(qdisc); err != nil {
			return fmt.Errorf("netem (module sch_netem): %w", err)
		}
		return nil
	})
}

// Repair ends what Impair began, and returns how many packets the wires lost meanwhile.
func (n *Net) Repair() (lost uint64, err error) {
	err = n.onWires(func(dev string) error {
		link, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		qdiscs, err := netlink.QdiscList(link)
		if err != nil {
			return fmt.Errorf("read queueing disciplines: %w", err)
		}
		for _, q := range qdiscs {
			if q.Type() != "netem" {
				continue
			}
			if s := q.Attrs().Statistics; s != nil && s.Queue != nil {
				lost += uint64(s.Queue.Drops)
			}
			if err := netlink.QdiscDel(q); err != nil {
				return fmt.Errorf("remove netem: %w", err)
			}
		}
		return nil
	})
	return lost, err
}

// onWires calls f for each end of a wire that packets between the gateway and the hosts leave by,
// in its namespace.
func (n *Net) onWires(f func(dev string) error) error {
	for _, h := range n.hosts {
		if h == n.Gateway {
			continue
		}
		dev := h.Interfaces[0].Name
		if err := h.Run(func() error { return f(dev) }); err != nil {
			return fmt.Errorf("%s: %w", dev, err)
		}
		if err := n.wire.run(func() error { return f(h.port) }); err != nil {
			return fmt.Errorf("%s: %w", h.port, err)
		}
	}
	return nil
}

// fixNeighbours tells the gateway and the other hosts each other's MAC addresses, for good.
func (n *Net) fixNeighbours() error {
	for _, h := range n.hosts {
		if h == n.Gateway {
			continue
		}
		theirs := h.Interfaces[0]
		for _, ours := range n.Gateway.Interfaces {
			if !ours.Addr4.Contains(theirs.Addr4.Addr()) {
				continue
			}
			err := errors.Join(
				h.Neighbour(theirs.device(), ours.MAC, ours.Addr4.Addr(), ours.Addr6.Addr()),
				n.Gateway.Neighbour(ours.device(), theirs.MAC, theirs.Addr4.Addr(), theirs.Addr6.Addr()))
			if err != nil {
				return err
			}
		}
	}
	return nil
}
