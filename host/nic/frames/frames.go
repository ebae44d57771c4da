// Package frames chooses the size of UMEM frames for a set of interfaces, and determines which
// packets drivers deliver in one frame.
//
// A frame is 2048 or 4096 bytes (XDP_UMEM_MIN_CHUNK_SIZE to the page size, net/xdp/xdp_umem.c), of
// which the kernel reserves 256 before the packet. In copy mode the packet can use the rest. In
// zero-copy the device writes into it, and the hardware rounds buffer sizes to a unit: if a buffer
// is smaller than a packet, the rest of the packet goes to the next buffer, and drivers that do not
// look for the end of a packet deliver two pieces as two packets, or discard both.
//
//	4096-byte frame   │256│            3840 for the packet          │
//	igb, igc, ixgbe   │256│         3072 (three KiB)        │ unused │
//	2048-byte frame   │256│      1792      │
//	igb, igc, ixgbe   │256│  1024  │unused │
package frames

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/host/nic/netdev"
)

// The sizes that there are, in bytes.
const (
	Small = 2048
	Large = 4096
)

const (
	// headroom is XDP_PACKET_HEADROOM (include/uapi/linux/bpf.h).
	headroom = unix.XDP_PACKET_HEADROOM
	// layer2 is an Ethernet header and two VLAN tags; framing is that and a checksum, ETH_PAD_LEN
	// of net/xdp/xsk_buff_pool.c.
	layer2  = 14 + 2*4
	framing = layer2 + 4
)

// kib has the drivers that give the hardware its buffer size in whole KiB, rounded down, and do not
// join the buffers of a packet in zero-copy. igb and igc deliver the pieces (igb_setup_srrctl of
// igb_main.c; igc_configure_rx_ring of igc_main.c, IGC_SRRCTL_BSIZEPKT). ixgbe discards them, so
// that nothing shows the loss (ixgbe_clean_rx_irq_zc of ixgbe_xsk.c). Only the 82599 of its devices
// does so (ixgbe_configure_srrctl of ixgbe_main.c), which the driver's name does not show.
var kib = map[string]bool{"igb": true, "igc": true, "ixgbe": true}

// unit is the number of which a buffer's size is a multiple: that of the users of
// xsk_pool_get_rx_frame_size, at most 128 bytes for ice, i40e and unknown drivers.
func unit(driver string) int {
	if kib[driver] {
		return 1024
	}
	return 128
}

// LongRoom is the largest IP packet, in bytes, that a socket takes in several frames of a size
// (xsk.Config.Long).
func LongRoom(size int) int { return min((size-headroom)*fastpath.MaxBuffers, math.MaxUint16) - layer2 }

// Long reports whether the packets of an MTU need several frames of a size.
func Long(mtu, size int) bool { return mtu > Room(size) }

// WhyLongIsCopy returns why an interface of such an MTU is in copy mode. In zero-copy, how many
// buffers a driver sends as one packet differs between drivers (xdp_zc_max_segs).
func WhyLongIsCopy(mtu, size int) string {
	return fmt.Sprintf("MTU %d takes %d frames of %d bytes a packet, and packets in several frames are taken in copy "+
		"mode",
		mtu, (mtu+layer2-1)/(size-headroom)+1, size)
}

// nativeMTU is the largest MTU at which a driver takes a native XDP program, where that is smaller
// than a frame: igc_xdp_set_prog (igc_xdp.c) takes no jumbo frames, igb_xdp_setup (igb_main.c) and
// ixgbe_xdp_setup (ixgbe_main.c) none that exceed their largest buffer, 3072 bytes with Ethernet
// header and checksum, and two VLAN tags (igb) or one (ixgbe).
var nativeMTU = map[string]int{"igc": 1500, "igb": 3046, "ixgbe": 3050}

// NativeMTU is the largest MTU at which every driver of that name that has native mode gives all
// packets to a native program.
func NativeMTU(driver string) int {
	if most, ok := nativeMTU[driver]; ok {
		return most
	}
	return Room(Large)
}

// ZeroCopyMTU is the largest MTU at which zero-copy works, in large frames.
func ZeroCopyMTU(driver string) int { return min(NativeMTU(driver), Whole(driver, Large)) }

// WhyGeneric returns why native mode does not work on an interface whose driver has these features
// (package netdev); it is empty if it does. Where the MTU is beyond any frame, and so beyond a
// page, the driver receives packets in several buffers. One that does not give those to the XDP
// program would keep them from it. A driver that refuses the program is not asked: to ask it, an
// attached generic program must be taken off for a moment.
func WhyGeneric(driver string, features uint64, known bool, mtu int) string {
	if mtu <= NativeMTU(driver) || known && features&netdev.Basic == 0 {
		return ""
	}
	if most, ok := nativeMTU[driver]; ok {
		return fmt.Sprintf("driver %s refuses a native XDP program at an MTU of more than %d, and it is %d", driver,
			most, mtu)
	}
	if !known || features&netdev.RxSG != 0 {
		return ""
	}
	return fmt.Sprintf("driver %s gives no packets in several buffers to a native XDP program, and MTU %d has some",
		driver, mtu)
}

// Room is the largest IP packet, in bytes, that a frame of a size holds: in copy mode, and to send.
func Room(size int) int { return size - headroom - layer2 }

// Whole is the largest IP packet, in bytes, that a driver delivers whole into a frame in zero-copy.
func Whole(driver string, size int) int {
	return (size-headroom)/unit(driver)*unit(driver) - framing
}

// WhyNotWhole returns why zero-copy does not work on an interface whose packets the driver would
// cut in pieces, or discard; it is empty if nothing is.
func WhyNotWhole(driver string, mtu, size int) string {
	most := Whole(driver, size)
	if mtu <= most || Long(mtu, size) { // the latter is copy mode in any case
		return ""
	}
	why := fmt.Sprintf("driver %s delivers packets of up to %d bytes whole into frames of %d bytes, and the MTU is %d",
		driver, most, size, mtu)
	if size < Large && mtu <= Whole(driver, Large) {
		return why + ": set tuning.frameSize to auto or 4096, and restart"
	}
	return why
}

// MakeWhole returns what to do about WhyNotWhole.
func MakeWhole(name, driver string, size int) string {
	if size < Large {
		return "set tuning.frameSize to auto or 4096"
	}
	return fmt.Sprintf("ip link set %s mtu %d", name, ZeroCopyMTU(driver))
}

// Interface has the properties of an interface that the choice depends on.
type Interface struct {
	Name, Driver string
	MTU          int
	ZeroCopy     bool // may be tried, and perhaps is to be had
}

// Choice is a size and its reason.
type Choice struct {
	Size   int // bytes
	Reason string
}

// Choose returns the configured size, or the smallest with which every interface works in the best
// mode that its driver has. Larger frames hold more and take twice the memory.
func Choose(configured config.FrameSize, list []Interface) Choice {
	if configured != config.AutoFrameSize {
		return Choice{int(configured), "tuning.frameSize says so"}
	}
	for _, i := range list {
		switch {
		case i.MTU > Room(Small):
			return Choice{Large, fmt.Sprintf("%s has MTU %d, and frames of %d bytes take %d", i.Name, i.MTU, Small,
				Room(Small))}
		case i.ZeroCopy && i.MTU > Whole(i.Driver, Small):
			return Choice{Large,
				fmt.Sprintf("driver %s of %s delivers packets of up to %d bytes whole into frames of %d bytes in "+
					"zero-copy, and the MTU is %d",
					i.Driver, i.Name, Whole(i.Driver, Small), Small, i.MTU)}
		}
	}
	return Choice{Small, fmt.Sprintf("every MTU is at most %d", Room(Small))}
}
