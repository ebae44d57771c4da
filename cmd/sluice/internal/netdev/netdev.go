// Package netdev asks the kernel what a device's driver can do with XDP.
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
	// RxSG: the XDP program gets packets in several buffers. A driver without it refuses a program where the MTU
	// needs them, or keeps such packets from it.
	RxSG = 1 << 5
)

// The generic netlink family "netdev" (include/uapi/linux/netdev.h, Linux 6.3).
const (
	netdevFamily         = "netdev"
	netdevCmdDevGet      = 1
	netdevAttrIfindex    = 1
	netdevAttrXDPFeature = 3
)

// genlHeader is struct genlmsghdr: command, version, two reserved bytes that must
// be zero. (nl.Genlmsg has two bytes and serializes four, so what follows it in
// memory goes to the kernel, which refuses it when it is not zero.)
type genlHeader [nl.SizeofGenlmsg]byte

// Len and Serialize implement nl.NetlinkRequestData.
func (h genlHeader) Len() int { return len(h) }

// Serialize returns the header's bytes.
func (h genlHeader) Serialize() []byte { return h[:] }

var errNoAttribute = errors.New("no such attribute")

// XDPFeatures asks the kernel what a device's driver can do with XDP; known is
// false on kernels that do not say.
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
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return 0, err
	}
	for _, a := range attrs {
		if a.Attr.Type == kind && len(a.Value) == 8 {
			return binary.NativeEndian.Uint64(a.Value), nil
		}
	}
	return 0, errNoAttribute
}
