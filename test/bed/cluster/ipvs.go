package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"sluice.dev/sluice/test/bed/topo"
)

// ipvsTable is IPVS's virtual servers and their destinations, in the calling thread's namespace.
const ipvsTable = "/proc/thread-self/net/ip_vs"

// errUntold: the marker is there, and so may be all else.
var errUntold = topo.Final(errors.New("cannot determine whether kube-proxy has finished"))

// hasServer returns nil if the marker, in one family, is a virtual server with a destination, and
// the one before it is gone. kube-proxy makes servers first, goes on to IP sets and rules of
// iptables, and removes servers that are not wanted any more at the end (syncProxyRules of
// pkg/proxy/ipvs/proxier.go). So if both were seen at the same time, which busy notes, the turn
// that made the one is over when the other is gone. If not, the marker's Service may have come in a
// turn before its slice.
func (p *Proxy) hasServer(clusterIP string, busy map[string]bool) error {
	address, err := netip.ParseAddr(clusterIP)
	if err != nil {
		return fmt.Errorf("the marker's address: %w", err)
	}
	var table []byte
	err = p.config.Host.Run(func() (err error) {
		table, err = os.ReadFile(ipvsTable)
		return err
	})
	if err != nil {
		return err
	}
	now, _ := destinations(string(table), netip.AddrPortFrom(address, uint16(p.settled)))
	_, before := destinations(string(table), netip.AddrPortFrom(address, uint16(p.settled-1)))
	switch {
	case now == 0:
		return errors.New("no virtual server of it with a destination")
	case before:
		busy[clusterIP] = true
		return errors.New("the virtual server of the marker before it is not gone")
	case !busy[clusterIP]:
		return errUntold
	}
	return nil
}

// destinations returns how many destinations a virtual server of TCP has, and whether there is one,
// from /proc/net/ip_vs (ip_vs_info_seq_show of net/netfilter/ipvs/ip_vs_ctl.c): a line "TCP
// ADDRESS:PORT SCHEDULER" in hexadecimal digits, and one line " -> ADDRESS:PORT ..." for each
// destination.
func destinations(table string, of netip.AddrPort) (n int, there bool) {
	here := false
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 2:
		case fields[0] != "->":
			here = fields[0] == "TCP" && fields[1] == ipvsName(of)
			there = there || here
		case here:
			n++
		}
	}
	return n, there
}

// ipvsName is how /proc/net/ip_vs writes an address and a port.
func ipvsName(a netip.AddrPort) string {
	if a.Addr().Is4() {
		return fmt.Sprintf("%08X:%04X", a.Addr().As4(), a.Port())
	}
	return fmt.Sprintf("[%s]:%04X", a.Addr().StringExpanded(), a.Port())
}
