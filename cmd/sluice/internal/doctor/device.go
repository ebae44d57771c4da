package doctor

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/cmd/sluice/internal/frames"
	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/status"
)

// The bits of enum netdev_xdp_act (include/uapi/linux/netdev.h).
const (
	xdpBasic    = 1 << 0
	xdpRedirect = 1 << 1
	xdpZeroCopy = 1 << 3
)

// device checks one configured interface.
func (e *examination) device(d *Interface) {
	if d.Err != nil {
		e.add(Fail, "interface", d.Name, d.Err.Error(), "correct interfaces in the configuration; `ip link` shows the names")
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
	e.queues(d, c)
	e.mtu(d)
	e.offloads(d)
	e.rpFilter(d)
	switch d.Master {
	case "bond", "team":
		e.ok("enslaved", d.Name, "to a "+d.Master+"; its members are the right place for XDP")
	case "bridge":
		e.add(Warn, "enslaved", d.Name, "to a bridge", "packets that the gateway takes never reach the bridge; make sure that is meant")
	}
	if d.Kind == "bond" || d.Kind == "vlan" || d.Kind == "team" {
		e.add(Warn, "device", d.Name, "is a "+d.Kind, "configure the devices under it: they have native XDP and all queues")
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

// running is the daemon's own view of an interface; nil if there is none.
func (e *examination) running(name string) *status.InterfaceView {
	if e.f.Running == nil {
		return nil
	}
	for i := range e.f.Running.Interfaces {
		if e.f.Running.Interfaces[i].Name == name {
			return &e.f.Running.Interfaces[i]
		}
	}
	return nil
}

// ourPrograms are the XDP programs of package xdpprog, by name.
var ourPrograms = map[string]bool{"steer": true, "host_link": true}

func (e *examination) program(d *Interface) {
	switch {
	case d.Program == "":
		e.ok("xdp-program", d.Name, "none attached")
	case ourPrograms[d.Program]:
		e.ok("xdp-program", d.Name, "sluice's own")
	default:
		e.add(Fail, "xdp-program", d.Name, d.Program+" is attached", "sluice never replaces another's program: remove it (ip link set "+d.Name+" xdp off) or take another interface")
	}
}

// mode says how packets get to user space and why.
func (e *examination) mode(d *Interface, c config.Interface) {
	if v := e.running(d.Name); v != nil {
		for _, q := range v.Queues {
			found := fmt.Sprintf("%s, %s (%s)", v.Mode, copyMode(q), reason(v.Reason, q.Reason))
			if q.Bound {
				e.ok("driver-mode", fmt.Sprintf("%s queue %d", d.Name, q.Queue), found)
			} else {
				e.add(Fail, "driver-mode", fmt.Sprintf("%s queue %d", d.Name, q.Queue), "not bound: "+reason(v.Reason, q.Reason),
					"another process may hold the queue; see `sluice status`")
			}
		}
		return
	}
	native, zeroCopy := d.native(), d.XDPFeatures&xdpZeroCopy != 0
	pieces := frames.WhyNotWhole(d.Driver, d.MTU, e.frames().Size)
	switch {
	case !d.XDPKnown:
		e.add(Warn, "driver-mode", d.Name, "the kernel does not say what driver "+d.Driver+" can", "start the daemon; `sluice status` shows the mode it got")
	case !native && c.Mode == config.ModeNative:
		e.add(Fail, "driver-mode", d.Name, "driver "+d.Driver+" has no native XDP", "set mode to auto or generic")
	case !zeroCopy && c.ZeroCopy == config.ZeroCopyRequire:
		e.add(Fail, "driver-mode", d.Name, "driver "+d.Driver+" has no zero-copy", "set zeroCopy to auto")
	case c.Mode == config.ModeGeneric:
		e.add(Warn, "driver-mode", d.Name, "generic, copy: mode is generic in the configuration", "expect a fraction of native speed")
	case !native && d.Kind == "veth":
		// It says so as long as it is that way (veth_set_xdp_features of drivers/net/veth.c).
		e.add(Warn, "driver-mode", d.Name, "generic, copy: the other end of this veth has more transmit queues than this end has receive queues",
			fmt.Sprintf("expect a fraction of native speed, or: ethtool -L %s rx N, N as many as the other end has tx", d.Name))
	case !native:
		e.add(Warn, "driver-mode", d.Name, "generic, copy: driver "+d.Driver+" has no native XDP", "expect a fraction of native speed")
	case c.ZeroCopy == config.ZeroCopyNever:
		e.ok("driver-mode", d.Name, "native, copy: zeroCopy is never in the configuration")
	case zeroCopy && pieces != "" && c.ZeroCopy == config.ZeroCopyRequire:
		e.add(Fail, "driver-mode", d.Name, "zeroCopy is require, but in zero-copy "+pieces, "set frames.size to auto, or zeroCopy to auto")
	case zeroCopy && pieces != "":
		e.add(Warn, "driver-mode", d.Name, "native, copy: in zero-copy "+pieces, "set frames.size to auto")
	case !zeroCopy:
		e.ok("driver-mode", d.Name, "native, copy: driver "+d.Driver+" has no zero-copy")
	default:
		e.ok("driver-mode", d.Name, "native, zero-copy: driver "+d.Driver+" says it can")
	}
}

// native reports whether the driver has native XDP, and what AF_XDP needs of it.
func (d *Interface) native() bool {
	return d.XDPFeatures&(xdpBasic|xdpRedirect) == xdpBasic|xdpRedirect
}

// zeroCopied reports whether the interface is bound in zero-copy: if a daemon runs it says so, else what the
// driver has and the configuration allows is taken.
func (e *examination) zeroCopied(d *Interface) bool {
	if v := e.running(d.Name); v != nil {
		return slices.ContainsFunc(v.Queues, func(q status.QueueView) bool { return q.ZeroCopy })
	}
	return d.native() && d.XDPFeatures&xdpZeroCopy != 0 && e.interfaceConfig(d.Name).ZeroCopy != config.ZeroCopyNever &&
		frames.WhyNotWhole(d.Driver, d.MTU, e.frames().Size) == ""
}

// frames is the size of frames that a daemon takes, or has.
func (e *examination) frames() frames.Choice {
	if e.f.Running != nil && e.f.Running.Frames.Bytes != 0 {
		return frames.Choice{Size: e.f.Running.Frames.Bytes, Reason: e.f.Running.Frames.Reason}
	}
	var list []frames.Interface
	for i := range e.f.Interfaces {
		d := &e.f.Interfaces[i]
		list = append(list, frames.Interface{Name: d.Name, Driver: d.Driver, MTU: d.MTU, ZeroCopy: e.interfaceConfig(d.Name).ZeroCopy != config.ZeroCopyNever})
	}
	return frames.Choose(e.f.Config.Frames.Size, list)
}

func copyMode(q status.QueueView) string {
	if q.ZeroCopy {
		return "zero-copy"
	}
	return "copy"
}

func reason(list ...string) string {
	var given []string
	for _, s := range list {
		if s != "" {
			given = append(given, s)
		}
	}
	if len(given) == 0 {
		return "no reason given"
	}
	return strings.Join(given, "; ")
}

// queuesUsed is how many queues of an interface the gateway takes.
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
		e.add(Fail, "queues", d.Name, fmt.Sprintf("%d configured, it has %d", used, d.Queues),
			fmt.Sprintf("set queues to all, or: ethtool -L %s combined %d", d.Name, used))
	case d.RSSQueues > used:
		e.add(Warn, "queues", d.Name, fmt.Sprintf("%s, but packets are spread over %d: those of other queues go to the kernel", found, d.RSSQueues),
			fmt.Sprintf("ethtool -X %s equal %d, then ethtool -L %s combined %d; or set queues to all", d.Name, used, d.Name, used))
	case used > e.f.CPUs:
		e.add(Warn, "queues", d.Name, fmt.Sprintf("%s, on %d CPUs", found, e.f.CPUs),
			fmt.Sprintf("workers will share CPUs: ethtool -L %s combined %d", d.Name, e.f.CPUs))
	default:
		e.ok("queues", d.Name, found)
	}
}

func (e *examination) mtu(d *Interface) {
	size := e.frames().Size
	most := frames.Room(size)
	if d.MTU <= most {
		e.ok("mtu", d.Name, fmt.Sprintf("%d fits frames of %d bytes (at most %d)", d.MTU, size, most))
		return
	}
	do := fmt.Sprintf("ip link set %s mtu %d", d.Name, most)
	if size < frames.Large {
		do = fmt.Sprintf("set frames.size to auto or %d, or: %s", frames.Large, do)
	}
	e.add(Fail, "mtu", d.Name, fmt.Sprintf("%d, but a frame of %d bytes holds %d: larger packets are lost", d.MTU, size, most), do)
}

// offloads checks what makes packets that are not as they were on the wire.
func (e *examination) offloads(d *Interface) {
	before := len(e.findings)
	if d.Features["rx-lro"] {
		e.add(Fail, "offloads", d.Name, "rx-lro is on: it merges packets into ones that no frame holds and nobody may forward", "ethtool -K "+d.Name+" lro off")
	}
	if d.Features["rx-gro-hw"] && d.Program == "" { // drivers that can turn it off do so with XDP
		e.add(Warn, "offloads", d.Name, "rx-gro-hw is on: it merges packets before XDP sees them, unless the driver turns it off with XDP", "ethtool -K "+d.Name+" rx-gro-hw off")
	}
	if len(d.VLANs) > 0 && d.Features["rx-vlan-hw-parse"] {
		e.add(Warn, "offloads", d.Name, "rx-vlan-hw-parse is on and VLANs are on top ("+strings.Join(d.VLANs, ", ")+"): XDP sees tagged packets without their tag",
			"ethtool -K "+d.Name+" rxvlan off")
	}
	if d.Kind == "veth" {
		e.vethPeer(d)
	}
	if len(e.findings) == before {
		e.ok("offloads", d.Name, "none that changes packets")
	}
}

// vethPeer: what the other end's stack sends has only the pseudo-header's sum in
// its checksum, because veth says that hardware will do the rest (drivers/net/veth.c,
// NETIF_F_HW_CSUM). AF_XDP sees it as it is, and whoever gets it drops it.
func (e *examination) vethPeer(d *Interface) {
	const fix = "in the namespace of the other end: ethtool -K PEER tx off"
	switch {
	case d.PeerFeatures == nil:
		e.add(Warn, "offloads", d.Name, "is a veth whose other end is in another namespace: packets its stack sends have unfinished checksums unless its tx offload is off", fix)
	case d.PeerFeatures["tx-checksum-ip-generic"]:
		e.add(Fail, "offloads", d.Name, "the other end of this veth has tx checksumming on: packets its stack sends have unfinished checksums", fix)
	case d.PeerFeatures["tx-checksum-sctp"]: // NETIF_F_SCTP_CRC, the same for the CRC of SCTP
		e.add(Warn, "offloads", d.Name, "the other end of this veth has tx-checksum-sctp on: the SCTP packets its stack sends have no CRC", fix)
	}
}

func (e *examination) rpFilter(d *Interface) {
	if !e.f.Config.HostLink.Enabled {
		return
	}
	// The kernel takes the larger of the two (Documentation/networking/ip-sysctl.rst).
	all, own := e.f.Sysctls["net.ipv4.conf.all.rp_filter"], e.f.Sysctls["net.ipv4.conf."+d.Name+".rp_filter"]
	switch max(all, own) {
	case "":
		e.add(Warn, "rp_filter", d.Name, "cannot be read", "make sure it is 0 or 2")
	case "1":
		e.add(Warn, "rp_filter", d.Name, "strict", "packets that come back by the host link may be dropped: sysctl net.ipv4.conf.all.rp_filter=2")
	default:
		e.ok("rp_filter", d.Name, max(all, own))
	}
}
