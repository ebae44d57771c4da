// Package devices reads the network devices of the configuration as the kernel has
// them now: their queues, their driver, the frames that fit their packets. It refuses devices that
// cannot work before anything is changed (Check), and assigns queues to workers (Plan). Package
// ports opens sockets on them.
package devices

import (
	"cmp"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/host/nic/ethtool"
	"sluice.dev/sluice/host/nic/frames"
	"sluice.dev/sluice/host/nic/netdev"
	"sluice.dev/sluice/host/nic/rss"
)

// Device is an interface as the kernel has it now.
type Device struct {
	Name   string
	Index  int
	MTU    int
	Up     bool
	Queues int // that can both receive and transmit
	Spread int // queues that packets may arrive on
	Driver string
	// generic is why a native program would not get all packets; empty if it would.
	generic string
}

// Absent reports whether an error of Read or Blocked means that the network namespace has no such
// interface. Every other error leaves open how the interface is: this process may be out of
// descriptors or memory (EMFILE, ENFILE, ENOMEM, ENOBUFS), or the driver may be resetting the
// device (EBUSY; ENODEV from an ioctl, while netif_device_present is false).
func Absent(err error) bool { return errors.As(err, new(netlink.LinkNotFoundError)) }

// Read reads an interface of this network namespace. Errors other than Absent have no information
// about the interface.
func Read(name string) (Device, error) {
	link, err := netlink.LinkByName(name)
	switch {
	case Absent(err):
		return Device{},
			fmt.Errorf("interface %s: %w (`ip link` shows what there is; the names are in `interfaces` of the "+
				"configuration)", name, err)
	case err != nil:
		return Device{}, fmt.Errorf("interface %s cannot be read: %w", name, err)
	}
	a := link.Attrs()
	d := Device{Name: name, Index: a.Index, MTU: a.MTU, Up: a.Flags&net.FlagUp != 0}
	if err := d.readQueues(); err != nil {
		return Device{}, fmt.Errorf("interface %s cannot be read: %w", name, err)
	}
	if d.MTU > frames.NativeMTU(d.Driver) { // no other MTU needs generic mode; the watcher comes here twice a second
		features, known := netdev.XDPFeatures(d.Index)
		d.generic = frames.WhyGeneric(d.Driver, features, known, d.MTU)
	}
	return d, nil
}

// WhyGeneric is why mode auto takes generic mode; empty if it tries native mode.
func (d *Device) WhyGeneric() string { return cmp.Or(d.generic, netdev.WhyNotNative(d.Driver)) }

// Found is the configured devices, in the order of the configuration, and the frames that fit them.
type Found struct {
	Devices []Device
	Frames  frames.Choice
}

// Find reads the configured interfaces and rejects interfaces that cannot work.
func Find(c *config.Configuration) (found Found, err error) {
	found.Devices = make([]Device, len(c.Interfaces))
	list := make([]frames.Interface, len(c.Interfaces))
	for i, f := range c.Interfaces {
		d, err := Read(f.Name)
		if err != nil {
			return found, err
		}
		found.Devices[i] = d
		list[i] = frames.Interface{Name: d.Name, Driver: d.Driver, MTU: d.MTU, ZeroCopy: mayZeroCopy(f, d)}
	}
	found.Frames = frames.Choose(c.Tuning.FrameSize, list)
	for i, d := range found.Devices {
		if _, err := Check(d, c.Interfaces[i], found.Frames); err != nil {
			return found, err
		}
	}
	return found, nil
}

// readQueues asks the driver for its name and queues. A driver that reports none has one queue.
func (d *Device) readQueues() (err error) {
	d.Queues, d.Spread = 1, 1
	if d.Driver, err = ethtool.Driver(d.Name); err != nil && !unsupported(err) {
		return err
	}
	c, err := ethtool.ReadChannels(d.Name)
	if unsupported(err) {
		return nil
	}
	if err != nil {
		return err
	}
	d.Queues = c.Pairs()
	d.Spread, _ = c.Queues()
	if n, known := rss.Queues(d.Index); known {
		d.Spread = n
	}
	return nil
}

// unsupported reports whether an error means that the driver does not support the request.
func unsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}
