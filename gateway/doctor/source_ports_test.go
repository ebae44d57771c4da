package doctor

import (
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/serve/status"
)

// TestSourcePorts: doctor warns where flows of a protocol use 80 % of the source ports towards a
// backend, and says whether new flows can still get one.
func TestSourcePorts(t *testing.T) {
	backend := func(at, source string, ports, used, unavailable int) status.BackendPortsView {
		return status.BackendPortsView{Backend: netip.MustParseAddrPort(at), Source: netip.MustParseAddr(source),
			Ports: ports, Used: used, Unavailable: unavailable}
	}
	const dns, dns6, node, own = "10.0.0.1:53", "[fd00::1]:53", "192.0.2.1", "192.0.2.9"
	none := status.BackendPortsView{}
	const more, shorter, wider = "add to snat.addresses", "udpUnreplied (30s)", "widen snat.ports"
	for _, c := range []struct {
		name              string
		family, protocol  string
		mostUsed, leastOf status.BackendPortsView
		subject, found    string // none: no warning
		do, doNot         string
	}{
		{"UDP, questions without answers", "ipv4", "UDP", backend(dns, node, 13616, 10893, 10893),
			backend(dns, node, 13616, 10893, 10893), "IPv4 UDP",
			"UDP to 10.0.0.1:53 uses 10893 of the 13616 ports of 192.0.2.1; if none is free, new flows are rejected",
			shorter, ""},
		{"UDP, one less", "ipv4", "UDP", backend(dns, node, 13616, 10892, 10892),
			backend(dns, node, 13616, 10892, 10892), "", "", "", ""},
		{"UDP, most were answered", "ipv4", "UDP", backend(dns, node, 13616, 13616, 2000),
			backend("10.0.0.2:53", node, 13616, 3000, 3000), "IPv4 UDP",
			"UDP to 10.0.0.1:53 uses 13616 of the 13616 ports of 192.0.2.1; if no other is free, new flows reuse " +
				"11616 of them", more,
			"udpUnreplied"},
		{"UDP, answered there and not elsewhere", "ipv4", "UDP", backend(dns, node, 13616, 13616, 2000),
			backend("10.0.0.2:53", node, 13616, 12000, 12000), "IPv4 UDP",
			"UDP to 10.0.0.2:53 uses 12000 of the 13616 ports of 192.0.2.1; if none", more, ""},
		{"UDP over IPv6", "ipv6", "UDP", backend(dns6, "fd00::2", 13616, 13000, 13000),
			backend(dns6, "fd00::2", 13616, 13000, 13000), "IPv6 UDP", "UDP to [fd00::1]:53 uses 13000", shorter, ""},
		{"TCP", "ipv4", "TCP", backend("10.0.0.1:80", node, 13616, 11000, 11000),
			backend("10.0.0.1:80", node, 13616, 11000, 11000), "IPv4 TCP", "TCP to 10.0.0.1:80 uses 11000", more,
			"udpUnreplied"},
		{"TCP in TIME_WAIT", "ipv4", "TCP", backend("10.0.0.1:80", node, 13616, 11000, 100), none, "IPv4 TCP",
			"new flows reuse 10900 of them", more, ""},
		{"TCP by an address that the node does not have", "ipv4", "TCP",
			backend("10.0.0.1:80", own, 64512, 50000, 50000), backend("10.0.0.1:80", own, 64512, 50000, 50000), "", "",
			"", ""},
		{"behind the kernel's routes", "ipv4", "TCP", backend("10.0.0.1:80", "169.254.77.2", 13616, 11000, 11000),
			none, "IPv4 TCP", "ports of 169.254.77.2", wider, "snat.addresses"},
		{"no flows", "ipv4", "SCTP", none, none, "", "", "", ""},
	} {
		f := healthy()
		f.Config.HostLink.Addresses = []netip.Prefix{netip.MustParsePrefix("169.254.77.1/30")}
		f.PortsInUse = []status.SourcePortsView{
			{Family: c.family, Protocol: c.protocol, MostUsed: c.mostUsed, LeastAvailable: c.leastOf},
			{Family: c.family, Protocol: "SCTP"},
		}
		var warned []Finding
		families := map[string]bool{}
		for _, g := range Examine(f) {
			if g.Check != "source-ports" {
				continue
			}
			families[g.Subject] = true
			if g.Level != OK {
				warned = append(warned, g)
			}
		}
		if c.subject == "" {
			if len(warned) != 0 || !families["IPv4"] || !families["IPv6"] {
				t.Errorf("%s: warns %+v, and reports on %v", c.name, warned, families)
			}
			continue
		}
		if len(warned) != 1 || warned[0].Level != Warn || warned[0].Subject != c.subject ||
			!strings.Contains(warned[0].Found, c.found) || !strings.Contains(warned[0].Do, c.do) ||
			c.doNot != "" && strings.Contains(warned[0].Do, c.doNot) {
			t.Errorf("%s: %+v\nwant a warning of %s: %q, do %q", c.name, warned, c.subject, c.found, c.do)
		}
		if family := strings.Fields(c.subject)[0]; families[family] || len(families) != 2 {
			t.Errorf("%s: reports on %v", c.name, families)
		}
	}
}

// TestSourcePortsOfTheConfiguration: how many ports there are depends on where the addresses are.
func TestSourcePortsOfTheConfiguration(t *testing.T) {
	here, elsewhere := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for _, c := range []struct {
		addresses []netip.Addr
		want      string
	}{
		{nil, "13616 flows of each protocol to one backend, by the ports of the interface"},
		{[]netip.Addr{elsewhere}, "64512 flows of each protocol to one backend, by the ports of snat.addresses"},
		{[]netip.Addr{here, elsewhere}, "78128 flows of each protocol to one backend, by the ports of snat.addresses"},
	} {
		f := healthy()
		f.Addresses, f.Config.SNAT.Addresses = []netip.Addr{here}, c.addresses
		for _, g := range Examine(f) {
			if g.Check == "source-ports" && g.Subject == "IPv4" && (g.Level != OK || g.Found != c.want) {
				t.Errorf("%v: %+v, want %q", c.addresses, g, c.want)
			}
		}
	}
}
