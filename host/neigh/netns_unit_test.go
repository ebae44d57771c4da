package neigh

import (
	"net"
	"net/netip"
	"testing"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/nat/header"
)

func ipNet(s string) *net.IPNet {
	p := netip.MustParsePrefix(s)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func addr(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }

// mirror is a Mirror that follows a namespace.
type mirror struct {
	*Mirror
	t     *testing.T
	table *nexthop.Table
}

func (m *mirror) lookup(dst string) nexthop.Route {
	a := addr(dst)
	return m.table.View().Lookup(&a)
}
