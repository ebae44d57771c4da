package doctor

import (
	"cmp"
	"fmt"
	"slices"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/host/nic/frames"
	"sluice.dev/sluice/host/nic/netdev"
	"sluice.dev/sluice/serve/status"
)

// device reports findings about one configured interface.
func (e *examination) device(d *Interface) {
	if d.Err != nil {
		e.add(Fail, "interface", d.Name, d.Err.Error(),
			"correct interfaces in the configuration; `ip link` shows the names")
		return
	}
	state := fmt.Sprintf("driver %s, MTU %d", d.Driver, d.MTU)
	if d.Up {
		e.ok("interface", d.Name, "up, "+state)
	} else {
		e.add(Warn, "interface", d.Name, "down, "+state, "ip link set "+d.Name+" up")
	}
	c := e.interfaceConfig(d.Name)
	e.program(d)
	e.mode(d, c)
	e.attaching(d)
	e.queues(d, c)
	e.flowHash(d)
	e.rings(d, c)
	e.mtu(d)
	e.offloads(d, c)
	e.rpFilter(d)
	switch d.Master {
	case "bond", "team":
		e.ok("enslaved", d.Name, "to a "+d.Master+"; its members are the right place for XDP")
	case "bridge":
		e.add(Warn, "enslaved", d.Name, "to a bridge",
			"packets that the gateway receives never reach the bridge; make sure that this is intended")
	}
	if d.Kind == "bond" || d.Kind == "vlan" || d.Kind == "team" {
		e.add(Warn, "device", d.Name, "is a "+d.Kind,
			"configure the devices under it: they have native XDP and all queues")
	}
}

func (e *examination) interfaceConfig(name string) config.Interface {
	for _, c := range e.f.Config.Interfaces {
		if c.Name == name {
			return c
		}
	}
	return config.Interface{}
}

// native reports whether the driver reports native XDP.
func (d *Interface) native() bool {
	return netdev.Native(d.XDPFeatures)
}

// whyGeneric returns why the MTU needs generic mode; empty if it does not.
func (d *Interface) whyGeneric() string {
	return frames.WhyGeneric(d.Driver, d.XDPFeatures, d.XDPKnown, d.MTU)
}

// generic reports whether XDP will run in generic mode, by the configuration, the features that the
// driver reports, and the MTU.
func (d *Interface) generic(c config.Interface) bool {
	if c.Mode == config.ModeGeneric || d.XDPKnown && !d.native() {
		return true
	}
	return c.Mode == config.ModeAuto && (netdev.WhyNotNative(d.Driver) != "" || d.whyGeneric() != "")
}

// zeroCopySince has the first Linux version in which a driver has zero-copy, for drivers that got
// it late.
var zeroCopySince = map[string][2]int{
	"igb":        {6, 14}, // commit "igb: Add AF_XDP zero-copy Rx support" and its series
	"virtio_net": {6, 13}, // "virtio_net: xsk: tx: support xmit xsk buffer" and its series
}

// noZeroCopy returns why the interface cannot have zero-copy; empty if the driver reports support.
func (d *Interface) noZeroCopy(kernel string) string {
	var major, minor int
	_, err := fmt.Sscanf(kernel, "%d.%d", &major, &minor)
	first, late := zeroCopySince[d.Driver]
	switch {
	case late && err == nil && (major < first[0] || major == first[0] && minor < first[1]):
		return fmt.Sprintf("driver %s has no zero-copy before Linux %d.%d", d.Driver, first[0], first[1])
	case d.XDPFeatures&netdev.ZeroCopy == 0:
		return "driver " + d.Driver + " has no zero-copy"
	case d.NoAccessPlatform:
		// virtnet_xsk_pool_enable (drivers/net/virtio_net.c) needs a device that uses DMA
		// addresses.
		return "this virtio device is without ACCESS_PLATFORM, which zero-copy needs (QEMU: " +
			"disable-legacy=on,iommu_platform=on)"
	}
	return ""
}

// interfaceOf returns the daemon's view of an interface; nil if it has none.
func interfaceOf(daemon *status.StatusView, name string) *status.InterfaceView {
	if daemon == nil {
		return nil
	}
	for i := range daemon.Interfaces {
		if daemon.Interfaces[i].Name == name {
			return &daemon.Interfaces[i]
		}
	}
	return nil
}

// ourPrograms are the names of the XDP programs of package xdpprog.
var ourPrograms = map[string]bool{"steer": true, "host_link": true}

func (e *examination) program(d *Interface) {
	v := interfaceOf(e.f.Running, d.Name)
	switch {
	case d.Program == "":
		e.ok("xdp-program", d.Name, "none attached")
	case ourPrograms[d.Program]:
		e.ok("xdp-program", d.Name, "sluice's own")
	case v != nil && v.Mode != "": // reading a program's name takes a capability
		e.ok("xdp-program", d.Name, d.Program+", which the daemon reports as its own")
	case d.ProgramHidden:
		e.add(Warn, "xdp-program", d.Name, d.Program+" is attached, and this command may not read its name",
			"run it as root: sluice replaces only its own program")
	default:
		e.add(Fail, "xdp-program", d.Name, d.Program+" is attached",
			"sluice never replaces a program of another owner: remove it (ip link set "+d.Name+
				" xdp off) or use another interface")
	}
}

// slow is the advice about generic mode.
const slow = "expect a fraction of the speed of a NIC whose driver has native XDP"

// copied is the consequence of copy mode (docs/limits.md, Speed).
const copied = "; bulk TCP gets a fraction of the kernel's rate"

// mode checks the mode of the program and the sockets.
func (e *examination) mode(d *Interface, c config.Interface) {
	if v := interfaceOf(e.daemon, d.Name); v != nil {
		for _, q := range v.Queues {
			subject := fmt.Sprintf("%s queue %d", d.Name, q.Queue)
			found := cmp.Or(v.Why(&q), v.Mode+", "+q.SocketMode())
			switch {
			case !q.Bound:
				e.add(Fail, "driver-mode", subject, found, "another process may hold the queue; see `sluice status`")
			case v.Mode == "generic":
				e.add(Warn, "driver-mode", subject, found, slow)
			case !q.ZeroCopy:
				e.ok("driver-mode", subject, found+copied)
			default:
				e.ok("driver-mode", subject, found)
			}
		}
		return
	}
	native, zeroCopy := d.native(), d.noZeroCopy(e.f.Kernel) == ""
	long := frames.Long(d.MTU, e.frames().Size)
	pieces := frames.WhyNotWhole(d.Driver, d.MTU, e.frames().Size)
	generic := d.whyGeneric()
	smaller := fmt.Sprintf("ip link set %s mtu %d", d.Name, frames.NativeMTU(d.Driver))
	whole := frames.MakeWhole(d.Name, d.Driver, e.frames().Size)
	switch {
	case !d.XDPKnown:
		e.add(Warn, "driver-mode", d.Name, "the kernel does not report the XDP features of driver "+d.Driver,
			"start the daemon; `sluice status` shows the mode")
	case !native && c.Mode == config.ModeNative:
		e.add(Fail, "driver-mode", d.Name, "driver "+d.Driver+" has no native XDP", "set mode to auto or generic")
	case !zeroCopy && c.ZeroCopy == config.ZeroCopyRequire:
		e.add(Fail, "driver-mode", d.Name, "zeroCopy is require, but "+d.noZeroCopy(e.f.Kernel), "set zeroCopy to auto")
	case long && c.ZeroCopy == config.ZeroCopyRequire:
		e.add(Fail, "driver-mode", d.Name, "zeroCopy is require, but "+frames.WhyLongIsCopy(d.MTU, e.frames().Size),
			fmt.Sprintf("set zeroCopy to auto, or: ip link set %s mtu %d", d.Name, frames.ZeroCopyMTU(d.Driver)))
	case generic != "" && c.ZeroCopy == config.ZeroCopyRequire:
		e.add(Fail, "driver-mode", d.Name, "zeroCopy is require, but "+generic,
			fmt.Sprintf("set zeroCopy to auto, or: ip link set %s mtu %d", d.Name, frames.ZeroCopyMTU(d.Driver)))
	case generic != "" && c.Mode == config.ModeNative:
		e.add(Fail, "driver-mode", d.Name, "mode is native, but "+generic, "set mode to auto or generic, or: "+smaller)
	case c.Mode == config.ModeGeneric:
		e.add(Warn, "driver-mode", d.Name, "generic, copy: mode is generic in the configuration", slow)
	case !native && d.Kind == "veth":
		// The driver reports no native XDP as long as that holds (veth_set_xdp_features in
		// drivers/net/veth.c).
		e.add(Warn, "driver-mode", d.Name,
			"generic, copy: the other end of this veth has more transmit queues than this end has receive queues",
			fmt.Sprintf("expect a fraction of native speed, or: ethtool -L %s rx N, N as many as the other end has tx",
				d.Name))
	case !native:
		e.add(Warn, "driver-mode", d.Name, "generic, copy: driver "+d.Driver+" has no native XDP", slow)
	case netdev.WhyNotNative(d.Driver) != "" && c.Mode == config.ModeAuto:
		e.add(Warn, "driver-mode", d.Name, "generic, copy: "+netdev.WhyNotNative(d.Driver),
			slow+"; or, where its link stays up: mode: native")
	case generic != "" && long: // longMTU reports it
		e.ok("driver-mode", d.Name, "generic, copy: because of the MTU"+copied)
	case generic != "":
		e.add(Warn, "driver-mode", d.Name, "generic, copy: "+generic, slow+", or: "+smaller)
	case netdev.WhyNotNative(d.Driver) != "":
		e.add(Warn, "driver-mode", d.Name, "mode is native, but "+netdev.WhyNotNative(d.Driver)+
			", until the daemon attaches it again", "set mode to auto or generic")
	case c.ZeroCopy == config.ZeroCopyNever:
		e.ok("driver-mode", d.Name, "native, copy: zeroCopy is never in the configuration"+copied)
	case zeroCopy && long:
		e.ok("driver-mode", d.Name, "native, copy: because of the MTU"+copied)
	case zeroCopy && pieces != "" && c.ZeroCopy == config.ZeroCopyRequire:
		e.add(Fail, "driver-mode", d.Name, "zeroCopy is require, but in zero-copy "+pieces,
			whole+", or set zeroCopy to auto")
	case zeroCopy && pieces != "":
		e.add(Warn, "driver-mode", d.Name, "native, copy: in zero-copy "+pieces+copied, whole)
	case !zeroCopy:
		e.ok("driver-mode", d.Name, "native, copy: "+d.noZeroCopy(e.f.Kernel)+copied)
	default:
		e.ok("driver-mode", d.Name, "native, zero-copy: driver "+d.Driver+" reports support")
	}
}

// zeroCopied reports whether the interface is bound in zero-copy. Without a daemon that reports the
// mode, the result follows from driver and configuration.
func (e *examination) zeroCopied(d *Interface) bool {
	if v := interfaceOf(e.daemon, d.Name); v != nil {
		return slices.ContainsFunc(v.Queues, func(q status.QueueView) bool { return q.ZeroCopy })
	}
	return d.native() && d.noZeroCopy(e.f.Kernel) == "" && e.interfaceConfig(d.Name).ZeroCopy != config.ZeroCopyNever &&
		!frames.Long(d.MTU, e.frames().Size) && frames.WhyNotWhole(d.Driver, d.MTU, e.frames().Size) == ""
}

// frames returns the daemon's frame size, or the one that it would choose.
func (e *examination) frames() frames.Choice {
	if e.daemon != nil && e.daemon.Frames.Bytes != 0 {
		return frames.Choice{Size: e.daemon.Frames.Bytes, Reason: e.daemon.Frames.Reason}
	}
	var list []frames.Interface
	for i := range e.f.Interfaces {
		d := &e.f.Interfaces[i]
		c := e.interfaceConfig(d.Name).ZeroCopy
		zeroCopy := c == config.ZeroCopyRequire || c != config.ZeroCopyNever && netdev.MayZeroCopy(d.XDPFeatures,
			d.XDPKnown)
		list = append(list, frames.Interface{Name: d.Name, Driver: d.Driver, MTU: d.MTU, ZeroCopy: zeroCopy})
	}
	return frames.Choose(e.f.Config.Tuning.FrameSize, list)
}

// queuesUsed returns how many queues of an interface the gateway uses.
func (e *examination) queuesUsed(d *Interface) int {
	if c := e.interfaceConfig(d.Name); c.Queues != config.AllQueues {
		return int(c.Queues)
	}
	return d.Queues
}

func (e *examination) queues(d *Interface, c config.Interface) {
	used := e.queuesUsed(d)
	found := fmt.Sprintf("%d of %d used", used, d.Queues)
	switch {
	case used > d.Queues:
		e.add(Fail, "queues", d.Name, fmt.Sprintf("%d configured, but it has %d", used, d.Queues),
			fmt.Sprintf("set queues to all, or: ethtool -L %s combined %d", d.Name, used))
	case d.RSSQueues > used:
		e.add(Warn, "queues", d.Name,
			fmt.Sprintf("%s, but packets are spread over %d: packets of other queues go to the kernel", found,
				d.RSSQueues),
			fmt.Sprintf("ethtool -X %s equal %d, then ethtool -L %s combined %d; or set queues to all", d.Name, used,
				d.Name, used))
	case d.RSSQueues > 0 && d.RSSQueues < used:
		e.add(Warn, "queues", d.Name,
			fmt.Sprintf("%s, but packets are spread over the first %d: the other queues and workers get none", found,
				d.RSSQueues),
			fmt.Sprintf("ethtool -X %s equal %d", d.Name, used))
	case used > e.f.CPUs:
		e.add(Warn, "queues", d.Name, fmt.Sprintf("%s, on %d CPUs", found, e.f.CPUs),
			fmt.Sprintf("workers will share CPUs: ethtool -L %s combined %d", d.Name, e.f.CPUs))
	default:
		e.ok("queues", d.Name, found)
	}
}

func (e *examination) mtu(d *Interface) {
	size := e.frames().Size
	if most := frames.Room(size); d.MTU <= most {
		e.ok("mtu", d.Name, fmt.Sprintf("%d fits frames of %d bytes (at most %d)", d.MTU, size, most))
		return
	}
	most := frames.LongRoom(size)
	if d.MTU <= most {
		e.longMTU(d)
		return
	}
	do := fmt.Sprintf("ip link set %s mtu %d", d.Name, most)
	if size < frames.Large {
		do = fmt.Sprintf("set tuning.frameSize to auto or %d, or: %s", frames.Large, do)
	}
	e.add(Fail, "mtu", d.Name,
		fmt.Sprintf("%d, but a packet in several frames of %d bytes has at most %d: larger ones are lost", d.MTU, size,
			most), do)
}

// longMTU checks the MTU for packets in several frames. mode reports settings that this makes
// impossible.
func (e *examination) longMTU(d *Interface) {
	c, copied := e.interfaceConfig(d.Name), frames.WhyLongIsCopy(d.MTU, e.frames().Size)
	generic := d.whyGeneric()
	if generic != "" && c.Mode == config.ModeAuto && c.ZeroCopy != config.ZeroCopyRequire {
		e.add(Warn, "mtu", d.Name, generic+"; "+copied, fmt.Sprintf("%s, or: ip link set %s mtu %d", slow, d.Name,
			frames.NativeMTU(d.Driver)))
		return
	}
	e.ok("mtu", d.Name, copied)
}

func (e *examination) rpFilter(d *Interface) {
	if !e.f.Config.HostLink.Enabled() {
		return
	}
	// The kernel takes the larger of the two (Documentation/networking/ip-sysctl.rst).
	all, own := e.f.Sysctls["net.ipv4.conf.all.rp_filter"], e.f.Sysctls["net.ipv4.conf."+d.Name+".rp_filter"]
	switch max(all, own) {
	case "":
		e.add(Warn, "rp_filter", d.Name, "cannot be read", "make sure it is 0 or 2")
	case "1":
		e.add(Warn, "rp_filter", d.Name, "strict",
			"packets that return over the host link may be dropped: sysctl net.ipv4.conf.all.rp_filter=2")
	default:
		e.ok("rp_filter", d.Name, max(all, own))
	}
}
