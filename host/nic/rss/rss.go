// Package rss asks the kernel over which receive queues a NIC spreads packets:
// the largest entry of its indirection table, by ethtool's netlink family.
package rss

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of the generic netlink family "ethtool" (include/uapi/linux/ethtool_netlink.h). The older ioctl
// is no way to ask: the answer is as long as the table, and the caller cannot pass how much room
// there is.
const (
	family         = "ethtool"
	attrHeader     = 1 // ETHTOOL_A_RSS_HEADER
	attrIndir      = 4 // ETHTOOL_A_RSS_INDIR
	genlHeaderSize = nl.SizeofGenlmsg
	attrTypeMask   = 0x3fff // NLA_TYPE_MASK (include/uapi/linux/netlink.h)
)

// genlHeader is struct genlmsghdr: command, version, two reserved bytes.
type genlHeader [genlHeaderSize]byte

// Len implements nl.NetlinkRequestData.
func (h genlHeader) Len() int { return len(h) }

// Serialize implements nl.NetlinkRequestData.
func (h genlHeader) Serialize() []byte { return h[:] }

// Queues returns how many queues, from queue 0 on, packets may arrive on. It is not known where the
// driver has no table or the kernel does not report it (before Linux 6.2).
func Queues(ifindex int) (n int, known bool) {
	answer, err := ask(ifindex)
	if err != nil {
		return 0, false
	}
	return parse(answer)
}

// ask returns the attributes of the kernel's answer.
func ask(ifindex int) ([]byte, error) {
	id := int(knownFamily.Load())
	if id == 0 {
		var err error
		if id, err = familyID(); err != nil {
			return nil, err
		}
		knownFamily.Store(int32(id))
	}
	header := nl.NewRtAttr(unix.NLA_F_NESTED|attrHeader, nil)
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_INDEX, nl.Uint32Attr(uint32(ifindex)))
	return execute(id, unix.ETHTOOL_MSG_RSS_GET, header)
}

// knownFamily is familyID's answer, or 0. The family keeps its number: it is no module
// (CONFIG_ETHTOOL_NETLINK, net/Kconfig).
var knownFamily atomic.Int32

// familyID is the number that the running kernel gave the family. (Not by netlink.GenlFamilyGet:
// its header has two bytes, and the two after them in memory are sent along.)
func familyID() (int, error) {
	answer, err := execute(unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, nl.NewRtAttr(unix.CTRL_ATTR_FAMILY_NAME,
		nl.ZeroTerminated(family)))
	if err != nil {
		return 0, err
	}
	attrs, err := nl.ParseRouteAttr(answer)
	if err != nil {
		return 0, err
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.CTRL_ATTR_FAMILY_ID && len(a.Value) >= 2 {
			return int(binary.NativeEndian.Uint16(a.Value)), nil
		}
	}
	return 0, unix.ENODATA
}

// execute sends one request of a generic netlink family and returns the
// attributes of the answer.
func execute(family int, command byte, attr *nl.RtAttr) ([]byte, error) {
	request := nl.NewNetlinkRequest(family, 0)
	request.AddData(genlHeader{command, 1})
	request.AddData(attr)
	answers, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	if len(answers) == 0 || len(answers[0]) < genlHeaderSize {
		return nil, unix.ENODATA
	}
	return answers[0][genlHeaderSize:], nil
}

// parse looks through the attributes of an answer.
func parse(b []byte) (n int, known bool) {
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return 0, false
	}
	for _, a := range attrs {
		if a.Attr.Type&attrTypeMask != attrIndir {
			continue
		}
		for v := a.Value; len(v) >= 4; v = v[4:] {
			n = max(n, int(binary.NativeEndian.Uint32(v))+1)
		}
	}
	return n, n > 0
}
