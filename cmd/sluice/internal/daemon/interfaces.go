package daemon

import (
	"cmp"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/cmd/sluice/internal/frames"
	"sluice.dev/sluice/cmd/sluice/internal/netdev"
	"sluice.dev/sluice/cmd/sluice/internal/rss"
	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/ethtool"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/flowtable"
)

// maxSharedLinks is how many links of one worker poll can wait on.
const maxSharedLinks = 63

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
	// generic is why a native program would not get all packets; empty if it would.
	generic string
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
	if frames.Long(d.mtu, frames.Large) { // no other MTU needs generic mode; the watcher comes here twice a second
		features, known := netdev.XDPFeatures(d.ifindex)
		d.generic = frames.WhyGeneric(d.driver, features, known, d.mtu)
	}
	return d, nil
}

// whyGeneric is why mode auto takes generic mode; empty if it tries native mode.
func (d *device) whyGeneric() string { return cmp.Or(d.generic, netdev.WhyNotNative(d.driver)) }

// interfaces are the configured devices, and the frames that fit them.
type interfaces struct {
	devices []device
	frames  frames.Choice
}

// findInterfaces reads the configured interfaces and refuses those that cannot work.
func findInterfaces(c *config.Configuration) (found interfaces, err error) {
	found.devices = make([]device, len(c.Interfaces))
	list := make([]frames.Interface, len(c.Interfaces))
	for i, f := range c.Interfaces {
		d, err := findDevice(f.Name)
		if err != nil {
			return found, err
		}
		found.devices[i] = d
		list[i] = frames.Interface{Name: d.name, Driver: d.driver, MTU: d.mtu, ZeroCopy: mayZeroCopy(f, d)}
	}
	found.frames = frames.Choose(c.Frames.Size, list)
	for i, d := range found.devices {
		if _, err := checkDevice(d, c.Interfaces[i], found.frames); err != nil {
			return found, err
		}
	}
	return found, nil
}

// mayZeroCopy reports whether zero-copy counts for the size of frames. Where it is required it does: that the driver has
// none is said when it is opened.
func mayZeroCopy(f config.Interface, d device) bool {
	return f.ZeroCopy == config.ZeroCopyRequire || f.ZeroCopy != config.ZeroCopyNever && netdev.MayZeroCopy(netdev.XDPFeatures(d.ifindex))
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

// checkDevice refuses what cannot work, before anything is changed. about names what the refusal is about, as a
// condition does.
func checkDevice(d device, f config.Interface, chosen frames.Choice) (about string, err error) {
	if room := frames.LongRoom(chosen.Size); d.mtu > room {
		do := fmt.Sprintf("ip link set %s mtu %d", d.name, room)
		if chosen.Size < frames.Large {
			do = fmt.Sprintf("set frames.size to auto or %d and restart, or: %s", frames.Large, do)
		}
		return "mtu", fmt.Errorf("interface %s has MTU %d, but %d frames of %d bytes, which are the most that a packet may have, take at most %d, and larger packets are lost: %s",
			d.name, d.mtu, fastpath.MaxBuffers, chosen.Size, room, do)
	}
	if frames.Long(d.mtu, chosen.Size) && f.ZeroCopy == config.ZeroCopyRequire {
		return "zero-copy", fmt.Errorf("interface %s: zeroCopy is require, but %s: set zeroCopy to auto, or: ip link set %s mtu %d",
			d.name, frames.WhyLongIsCopy(d.mtu, chosen.Size), d.name, frames.Room(frames.Large))
	}
	if d.generic != "" && f.Mode == config.ModeNative {
		return "mode", fmt.Errorf("interface %s: mode is native, but %s: set mode to auto or generic, or: ip link set %s mtu %d",
			d.name, d.generic, d.name, frames.Room(frames.Large))
	}
	if why := frames.WhyNotWhole(d.driver, d.mtu, chosen.Size); why != "" && f.ZeroCopy == config.ZeroCopyRequire {
		return "zero-copy", fmt.Errorf("interface %s: zeroCopy is require, but in zero-copy %s", d.name, why)
	}
	return "", nil
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
