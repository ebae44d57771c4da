// Package netdev asks the kernel for the XDP features of a device's driver.
package netdev

import (
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Bits of enum netdev_xdp_act (include/uapi/linux/netdev.h).
const (
	Basic    = 1 << 0
	Redirect = 1 << 1
	ZeroCopy = 1 << 3
	// RxSG: the XDP program gets packets in several buffers. A driver without it refuses a program
	// where the MTU needs them, or keeps such packets from it.
	RxSG = 1 << 5
)

// The generic netlink family "netdev" (include/uapi/linux/netdev.h, Linux 6.3).
const (
	netdevFamily         = "netdev"
	netdevCmdDevGet      = 1
	netdevAttrIfindex    = 1
	netdevAttrXDPFeature = 3
)

// Native reports whether a driver with these features runs programs in native mode and lets them
// redirect packets.
func Native(features uint64) bool {
	const needed = Basic | Redirect
	return features&needed == needed
}

// MayZeroCopy reports whether to request AF_XDP zero-copy: the kernel rejects it if a driver with
// known features lacks any of these three (NETDEV_XDP_ACT_ZC, net/xdp/xsk_buff_pool.c).
func MayZeroCopy(features uint64, known bool) bool {
	return !known || Native(features) && features&ZeroCopy != 0
}

// XDPFeatures asks the kernel for the XDP features of a device's driver; known is false if the
// kernel does not report them.
func XDPFeatures(index int) (features uint64, known bool) {
	answer, err := Ask(netdevFamily, netdevCmdDevGet, nl.NewRtAttr(netdevAttrIfindex, nl.Uint32Attr(uint32(index))))
	if err != nil {
		return 0, false
	}
	value, err := Attribute(answer, netdevAttrXDPFeature, 8)
	if err != nil {
		return 0, false
	}
	return binary.NativeEndian.Uint64(value), true
}

// LosesProgram reports whether a driver stops running its native XDP program after the device was
// down, although the kernel shows it as attached. Attaching it again helps. vmxnet3 of Linux 7.3
// does so: its counter "xdp packets" stops while "ucast pkts rx" increases.
func LosesProgram(driver string) bool { return driver == "vmxnet3" }

// WhyNotNative is why mode auto leaves a driver's native mode alone; empty if it does not.
func WhyNotNative(driver string) string {
	if !LosesProgram(driver) {
		return ""
	}
	return "driver " + driver +
		" runs no native XDP program any more once the link was down, and the kernel would reset connections"
}

// Carrier returns whether a device is up, and how often it has lost its carrier since it was made,
// which includes each time that it was taken down.
func Carrier(index int) (up bool, losses uint32, err error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(index)
	request.AddData(message)
	answers, err := request.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return false, 0, err
	}
	if len(answers) == 0 || len(answers[0]) < unix.SizeofIfInfomsg {
		return false, 0, unix.ENODATA
	}
	value, err := Attribute(answers[0][unix.SizeofIfInfomsg:], unix.IFLA_CARRIER_DOWN_COUNT, 4)
	if err != nil {
		return false, 0, err
	}
	return nl.DeserializeIfInfomsg(answers[0]).Flags&unix.IFF_UP != 0, binary.NativeEndian.Uint32(value), nil
}
