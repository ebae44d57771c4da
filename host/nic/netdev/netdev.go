// Package netdev asks the kernel for the XDP features of a device's driver.
package netdev

import (
	"encoding/binary"
	"errors"

	"github.com/vishvananda/netlink"
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

// genlHeader is struct genlmsghdr: command, version, two reserved bytes that must be zero.
// (nl.Genlmsg has two bytes and serializes four, so the kernel gets the bytes that follow it in
// memory, and rejects them unless they are zero.)
type genlHeader [nl.SizeofGenlmsg]byte

// Len and Serialize implement nl.NetlinkRequestData.
func (h genlHeader) Len() int { return len(h) }

// Serialize returns the header's bytes.
func (h genlHeader) Serialize() []byte { return h[:] }

var errNoAttribute = errors.New("no such attribute")

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
	family, err := netlink.GenlFamilyGet(netdevFamily)
	if err != nil {
		return 0, false
	}
	request := nl.NewNetlinkRequest(int(family.ID), 0)
	request.AddData(genlHeader{netdevCmdDevGet, 1})
	request.AddData(nl.NewRtAttr(netdevAttrIfindex, nl.Uint32Attr(uint32(index))))
	answers, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil || len(answers) == 0 || len(answers[0]) < nl.SizeofGenlmsg {
		return 0, false
	}
	features, err = uint64Attr(answers[0][nl.SizeofGenlmsg:], netdevAttrXDPFeature)
	return features, err == nil
}

func uint64Attr(b []byte, kind uint16) (uint64, error) {
	value, err := attribute(b, kind, 8)
	if err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(value), nil
}

// attribute returns the value of an attribute, which must have so many bytes.
func attribute(b []byte, kind uint16, bytes int) ([]byte, error) {
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, err
	}
	for _, a := range attrs {
		if a.Attr.Type == kind && len(a.Value) == bytes {
			return a.Value, nil
		}
	}
	return nil, errNoAttribute
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
		return false, 0, errNoAttribute
	}
	value, err := attribute(answers[0][unix.SizeofIfInfomsg:], unix.IFLA_CARRIER_DOWN_COUNT, 4)
	if err != nil {
		return false, 0, err
	}
	return nl.DeserializeIfInfomsg(answers[0]).Flags&unix.IFF_UP != 0, binary.NativeEndian.Uint32(value), nil
}
