package doctor

import (
	"fmt"
	"strings"

	"sluice.dev/sluice/config"
)

// offloads checks for offloads that change packets before XDP sees them.
func (e *examination) offloads(d *Interface, c config.Interface) {
	before := len(e.findings)
	if d.Features["rx-lro"] {
		// In generic mode the kernel turns it off (generic_xdp_install, net/core/dev.c). In native
		// mode the driver does (vmxnet3), or rejects the program.
		level, found := Warn, "rx-lro is on: kernel or driver turn it off with XDP, or native mode fails"
		if d.Program != "" {
			level, found = Fail, "rx-lro is on: it merges packets, which fit in no frame then and must not be forwarded"
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
			"): the NIC removes the tag before XDP sees a packet, so a packet of any VLAN is served as if it had "+
			"arrived without a tag",
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

// vethPeer checks the transmit checksum offload of a veth's other end. A packet of its stack has
// only the sum of the pseudo-header in its checksum, because veth has NETIF_F_HW_CSUM
// (drivers/net/veth.c) and hardware would complete the checksum. AF_XDP receives the packet like
// that, and its final receiver drops it.
func (e *examination) vethPeer(d *Interface) {
	const fix = "in the namespace of the other end: ethtool -K PEER tx off"
	switch {
	case d.PeerFeatures == nil:
		e.add(Warn, "offloads", d.Name,
			"is a veth whose other end is in another namespace: packets of its stack have unfinished checksums "+
				"unless its tx offload is off", fix)
	case d.PeerFeatures["tx-checksum-ip-generic"]:
		e.add(Fail, "offloads", d.Name,
			"the other end of this veth has tx checksumming on: packets of its stack have unfinished checksums", fix)
	case d.PeerFeatures["tx-checksum-sctp"]: // NETIF_F_SCTP_CRC: the same for the CRC of SCTP
		e.add(Warn, "offloads", d.Name,
			"the other end of this veth has tx-checksum-sctp on: SCTP packets of its stack have no CRC", fix)
	}
}

// checksums reports unfinished checksums that the daemon's workers counted. They do not count by
// interface; it must be one with senders on this machine.
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
		"receivers drop them, and their senders' connections are not completed", n),
		"in the senders on this machine, behind "+names+": ethtool -K DEV tx off; "+
			"sluice_worker_bad_checksums_total shows whether more arrive")
}

// mergedBelow checks GRO on devices under a configured one in generic mode. Generic XDP on a device
// above another sees packets after that device's GRO has merged them into packets of up to 64 KiB,
// which no next hop accepts. On its own device GRO skips them (netif_elide_gro,
// include/linux/netdevice.h), and native XDP runs before it.
func (e *examination) mergedBelow(d *Interface, c config.Interface) {
	if !d.generic(c) {
		return
	}
	for _, below := range d.Below {
		if below.GRO {
			e.add(Fail, "offloads", d.Name,
				fmt.Sprintf("rx-gro is on at %s under it: it merges packets before generic XDP sees them on %s, and "+
					"packets larger than the MTU are dropped (packet_too_big), so TCP is slow", below.Name, d.Name),
				fmt.Sprintf("configure %s instead of %s, or: ethtool -K %s gro off", below.Name, d.Name, below.Name))
		}
	}
}
