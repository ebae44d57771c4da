package daemon

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/cmd/sluice/internal/rss"
	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/ethtool"
	"sluice.dev/sluice/flowtable"
)

// Bytes around an IP packet that a frame must have room for: XDP_PACKET_HEADROOM
// (include/uapi/linux/bpf.h), an Ethernet header and two VLAN tags.
const (
	frameHeadroom  = 256
	frameL2Bytes   = 14 + 2*4
	maxFrameSize   = 4096
	maxSharedLinks = 63 // links of one worker that poll can wait on
)

// device is an interface as the kernel has it now.
type device struct {
	name    string
	ifindex int
	mtu     int
	mac     [6]byte
	up      bool
	queues  int // that can both receive and transmit
	spread  int // queues that packets may arrive on
	driver  string
}

// findDevice reads an interface of this network namespace.
func findDevice(name string) (device, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return device{}, fmt.Errorf("interface %s: %w (`ip link` shows what there is; the names are in `interfaces` of the configuration)", name, err)
	}
	a := link.Attrs()
	d := device{name: name, ifindex: a.Index, mtu: a.MTU, up: a.Flags&net.FlagUp != 0}
	copy(d.mac[:], a.HardwareAddr)
	d.readQueues()
	return d, nil
}

// findDevices reads the configured interfaces and refuses those that cannot work.
func findDevices(c *config.Configuration) ([]device, error) {
	devices := make([]device, len(c.Interfaces))
	for i, f := range c.Interfaces {
		d, err := findDevice(f.Name)
		if err != nil {
			return nil, err
		}
		if err := checkDevice(d, c); err != nil {
			return nil, err
		}
		devices[i] = d
	}
	return devices, nil
}

// readQueues asks the driver for its name and queues. Devices that do not answer
// have one queue.
func (d *device) readQueues() {
	d.queues, d.spread = 1, 1
	d.driver, _ = ethtool.Driver(d.name)
	c, err := ethtool.ReadChannels(d.name)
	if err != nil {
		return
	}
	d.queues = c.Pairs()
	d.spread, _ = c.Queues()
	if n, known := rss.Queues(d.ifindex); known {
		d.spread = n
	}
}

// frameRoom is the largest IP packet that a frame holds.
func frameRoom(c *config.Configuration) int { return c.Frames.Size - frameHeadroom - frameL2Bytes }

// checkDevice refuses what cannot work, before anything is changed.
func checkDevice(d device, c *config.Configuration) error {
	if room := frameRoom(c); d.mtu > room {
		do := fmt.Sprintf("ip link set %s mtu %d", d.name, room)
		if c.Frames.Size < maxFrameSize {
			do = fmt.Sprintf("set frames.size to %d and restart, or: %s", maxFrameSize, do)
		}
		return fmt.Errorf("interface %s has MTU %d, but frames of %d bytes take at most %d, and larger packets are lost: %s", d.name, d.mtu, c.Frames.Size, room, do)
	}
	return nil
}

// mostWorkers leaves one participant of the flow table to the control loop.
const mostWorkers = flowtable.MaxHandles - 1

// plan says which worker serves which queue: worker w has the queues q of every
// interface with q mod workers = w, so that each worker can transmit on each.
func plan(devices []device, c *config.Configuration) (workers int, queues []int, err error) {
	queues = make([]int, len(devices))
	for i, d := range devices {
		queues[i] = d.queues
		if want := int(c.Interfaces[i].Queues); want > 0 {
			if want > d.queues {
				return 0, nil, fmt.Errorf("interface %s: queues is %d, but it has %d (`ethtool -L` sets them)", d.name, want, d.queues)
			}
			queues[i] = want
		}
		if workers == 0 || queues[i] < workers {
			workers = queues[i]
		}
	}
	if c.Workers > workers {
		return 0, nil, fmt.Errorf("workers is %d, but an interface has only %d queues and each worker needs one on each interface", c.Workers, workers)
	}
	if c.Workers > 0 {
		workers = c.Workers
	}
	if workers > mostWorkers {
		return 0, nil, fmt.Errorf("%d workers, one per queue of every interface, are more than the flow table has places for: set workers to at most %d", workers, mostWorkers)
	}
	perWorker := 1 // the host link
	for _, q := range queues {
		perWorker += (q + workers - 1) / workers
	}
	if perWorker > maxSharedLinks {
		return 0, nil, fmt.Errorf("each of %d workers would have %d sockets, at most %d are possible: use more workers", workers, perWorker, maxSharedLinks)
	}
	return workers, queues, nil
}
