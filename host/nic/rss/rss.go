// Package rss asks the kernel over which receive queues a NIC spreads packets:
// the largest entry of its indirection table, by ethtool's netlink family.
package rss

import (
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/host/nic/netdev"
)

// Of the generic netlink family "ethtool" (include/uapi/linux/ethtool_netlink.h). The older ioctl
// is no way to ask: the answer is as long as the table, and the caller cannot pass how much room
// there is.
const (
	family     = "ethtool"
	attrHeader = 1 // ETHTOOL_A_RSS_HEADER
	attrIndir  = 4 // ETHTOOL_A_RSS_INDIR
)

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
	header := nl.NewRtAttr(unix.NLA_F_NESTED|attrHeader, nil)
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_INDEX, nl.Uint32Attr(uint32(ifindex)))
	return netdev.Ask(family, unix.ETHTOOL_MSG_RSS_GET, header)
}

// parse looks through the attributes of an answer.
func parse(b []byte) (n int, known bool) {
	table, err := netdev.Attribute(b, attrIndir, 4)
	if err != nil {
		return 0, false
	}
	for ; len(table) >= 4; table = table[4:] {
		n = max(n, int(binary.NativeEndian.Uint32(table))+1)
	}
	return n, true
}
