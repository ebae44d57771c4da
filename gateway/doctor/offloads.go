package doctor

import (
	"fmt"
	"strings"

	"sluice.dev/sluice/config"
)

// offloads checks for offloads by which packets differ from those on the wire.
func (e *examination) offloads(d *Interface, c config.Interface) {
	before := len(e.findings)
	if d.Features["rx-lro"] {
		// In generic mode the kernel turns it off (generic_xdp_install, net/core/dev.c), in native
		// mode the driver does (vmxnet3), or refuses the program.
		level, found := Warn, "rx-lro is on: the kernel or the driver turns it off with XDP, or native mode is refused"
		if d.Program != "" {
			level, found = Fail, "rx-lro is on: it merges packets into ones that no frame holds and nobody may forward"
		}
		e.add(level, "offloads", d.Name, found, "ethtool -K "+d.Name+" lro off")
	}
	if d.Features["rx-gro-hw"] && d.Program == "" { // drivers that can turn it off do so with XDP
		e.add(Warn, "offloads", d.Name,
			"rx-gro-hw is on: it merges packets before XDP sees them, unless the driver turns it off with XDP",
			"ethtool -K "+d.Name+" rx-gro-hw off")
	}
	if len(d.VLANs) > 0 && d.Features["rx-vlan-hw-parse"] {
		e.add(Warn, "offloads", d.Name, "rx-vlan-hw-parse is on and VLANs are on top ("+strings.Join(d.VLANs, ", ")+
			"): the NIC takes the tag off before XDP sees a packet, so a packet of any VLAN is served as if it had "+
			"come without a tag",
			"ethtool -K "+d.Name+" rxvlan off")
	}
	e.mergedBelow(d, c)
	if d.Kind == "veth" {
		e.vethPeer(d)
	}
	if len(e.findings) == before {
		e.ok("offloads", d.Name, "none that changes packets")
	}
}

// vethPeer: what the other end's stack sends has only the pseudo-header's sum in its checksum,
// because veth has NETIF_F_HW_CSUM (drivers/net/veth.c), by which hardware would complete it.
// AF_XDP gets the packet like that, and its receiver drops it.
func (e *examination) vethPeer(d *Interface) {
	const fix = "in the namespace of the other end: ethtool -K PEER tx off"
	switch {
	case d.PeerFeatures == nil:
		e.add(Warn, "offloads", d.Name,
			"is a veth whose other end is in another namespace: packets its stack sends have unfinished checksums "+
				"unless its tx offload is off", fix)
	case d.PeerFeatures["tx-checksum-ip-generic"]:
		e.add(Fail, "offloads", d.Name,
			"the other end of this veth has tx checksumming on: packets its stack sends have unfinished checksums", fix)
	case d.PeerFeatures["tx-checksum-sctp"]: // NETIF_F_SCTP_CRC, the same for the CRC of SCTP
		e.add(Warn, "offloads", d.Name,
			"the other end of this veth has tx-checksum-sctp on: the SCTP packets its stack sends have no CRC", fix)
	}
}

// checksums: what the workers of the daemon have counted. Which interface the segments came in by
// is not counted: it is one with senders on this machine.
func (e *examination) checksums() {
	if e.daemon == nil {
		return
	}
	n := uint64(0)
	for _, w := range e.f.Workers {
		n += w.UnfinishedChecksums
	}
	if n == 0 {
		return
	}
	var all, virtual []string
	for i := range e.f.Interfaces {
		d := &e.f.Interfaces[i]
		if all = append(all, d.Name); d.Kind != "device" {
			virtual = append(virtual, d.Name)
		}
	}
	if len(virtual) == 0 {
		virtual = all
	}
	names := strings.Join(virtual, ", ")
	e.add(Warn, "checksums", names, fmt.Sprintf("%d TCP segments or SCTP packets came with unfinished checksums: "+
		"their receivers drop them, and connections of their senders are not completed", n),
		"at their senders, which are on this machine, behind "+names+": ethtool -K DEV tx off; "+
			"sluice_worker_bad_checksums_total tells whether they go on")
}

// mergedBelow: generic XDP on a device that lies on another sees packets after the other's GRO has
// merged them into ones of up to 64 KiB, which no next hop takes. On its own device GRO leaves them
// alone (netif_elide_gro, include/linux/netdevice.h), and native XDP is before it.
func (e *examination) mergedBelow(d *Interface, c config.Interface) {
	if !d.generic(c) {
		return
	}
	for _, below := range d.Below {
		if below.GRO {
			e.add(Fail, "offloads", d.Name,
				fmt.Sprintf("rx-gro is on at %s below: it merges packets before generic XDP sees them on %s, and "+
					"what is larger than the MTU is dropped (packet_too_big), so TCP crawls", below.Name, d.Name),
				fmt.Sprintf("configure %s instead of %s, or: ethtool -K %s gro off", below.Name, d.Name, below.Name))
		}
	}
}
