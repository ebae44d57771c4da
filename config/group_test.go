package config

import (
	"net/netip"
	"strings"
	"testing"
)

// sampleGroup returns a valid group of three gateways.
func sampleGroup() *Group {
	member := func(name, address string, sources ...string) GroupMember {
		m := GroupMember{Name: name, Address: netip.MustParseAddrPort(address)}
		for _, a := range sources {
			m.Sources = append(m.Sources, netip.MustParseAddr(a))
		}
		return m
	}
	return &Group{
		Members: []GroupMember{
			member("gw-a", "192.0.2.1:9473", "198.51.100.1", "198.51.100.2", "2001:db8:f::1", "2001:db8:f::2"),
			member("gw-b", "192.0.2.2:9473", "198.51.100.3", "198.51.100.4", "2001:db8:f::3", "2001:db8:f::4"),
			member("gw-c", "192.0.2.3:9473", "198.51.100.5", "198.51.100.6", "2001:db8:f::5", "2001:db8:f::6"),
		},
		TLS:      GroupTLS{CertFile: "/etc/tls.crt", KeyFile: "/etc/tls.key", CAFile: "/etc/ca.crt"},
		Port:     9473,
		StateDir: "/var/lib/sluice",
	}
}

// fromNodes makes the group one of Nodes before a change.
func fromNodes(change func(*Configuration, *Group)) func(*Configuration, *Group) {
	return func(c *Configuration, g *Group) {
		c.Kubernetes.Enabled = true
		g.Members, g.Nodes, g.Port = nil, "sluice.dev/gateway=true", 9473
		change(c, g)
	}
}

// TestMembersOfNodes: members from Nodes are checked with the other settings, and differ from
// members in a file.
func TestMembersOfNodes(t *testing.T) {
	text := minimal + "kubernetes: {enabled: true}\ngroup:\n  nodes: sluice.dev/gateway=true\n  tls: {certFile: /c, " +
		"keyFile: /k, caFile: /a}\n"
	c, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if !c.Group.Enabled() || c.Group.Nodes != "sluice.dev/gateway=true" || c.Group.Port != 9473 {
		t.Errorf("read %+v", c.Group)
	}
	with := c.WithMembers(sampleGroup().Members)
	if err := with.Validate(); err != nil || len(c.Group.Members) != 0 {
		t.Errorf("refused: %v; the list of the original is %v", err, c.Group.Members)
	}
	one := c.WithMembers(sampleGroup().Members[:1]) // the others have yet to join
	if err := one.Validate(); err != nil {
		t.Errorf("one member is refused: %v", err)
	}
	with.AddressPools = []AddressPool{{Name: "p", Addresses: []string{"198.51.100.4/32"}}}
	const want = "configuration: group.nodes: selects Node gw-b: sources[1] is 198.51.100.4 of addressPools[0], " +
		"whose addresses Services get: choose another one"
	if err := with.Validate(); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// TestGroup gives each rule a group that breaks only it.
func TestGroup(t *testing.T) {
	addr := netip.MustParseAddr
	for _, c := range []struct {
		name   string
		change func(c *Configuration, g *Group)
		want   string // "": valid
	}{
		{"valid", func(*Configuration, *Group) {}, ""},
		{"none", func(_ *Configuration, g *Group) { *g = Group{Port: 9473, StateDir: "/var/lib/sluice"} }, ""},
		{"one family", func(_ *Configuration, g *Group) {
			for i := range g.Members {
				g.Members[i].Sources = g.Members[i].Sources[2:]
			}
		}, ""},
		{"certificates without members", func(_ *Configuration, g *Group) { g.Members = nil },
			"group.members: is empty, list the gateways of the group, or remove group.tls"},
		{"one member", func(_ *Configuration, g *Group) { g.Members = g.Members[:1] },
			"group.members: has 1 entries, a group has 2 to 8 gateways"},
		{"nine members", func(_ *Configuration, g *Group) {
			for i := range 6 {
				m := GroupMember{Name: "gw-" + string(rune('d'+i)), Address: netip.AddrPortFrom(
					netip.AddrFrom4([4]byte{192, 0, 2, byte(4 + i)}), 9473)}
				for j := range 4 {
					a := netip.AddrFrom4([4]byte{198, 51, 100, byte(10 + 2*i + j)})
					if j > 1 {
						a = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 1, 15: byte(2*i + j)})
					}
					m.Sources = append(m.Sources, a)
				}
				g.Members = append(g.Members, m)
			}
		}, "group.members: has 9 entries, a group has 2 to 8 gateways"},
		{"name in upper case", func(_ *Configuration, g *Group) { g.Members[1].Name = "GW-B" },
			`group.members[1].name: is "GW-B", write the node's name, which its certificate has as a DNS name`},
		{"name missing", func(_ *Configuration, g *Group) { g.Members[1].Name = "" },
			`group.members[1].name: is "", write the node's name`},
		{"name twice", func(_ *Configuration, g *Group) { g.Members[2].Name = "gw-a" },
			"group.members[2].name: is gw-a like group.members[0], name each gateway once"},
		{"address missing", func(_ *Configuration, g *Group) { g.Members[1].Address = netip.AddrPort{} },
			`group.members[1].address: is "", write address:port of the gateway such as 192.0.2.1:9473`},
		{"any address", func(_ *Configuration, g *Group) {
			g.Members[1].Address = netip.MustParseAddrPort("0.0.0.0:9473")
		}, `group.members[1].address: is "0.0.0.0:9473", write address:port of the gateway`},
		{"no port", func(_ *Configuration, g *Group) {
			g.Members[1].Address = netip.MustParseAddrPort("192.0.2.2:0")
		}, `group.members[1].address: is "192.0.2.2:0", write address:port of the gateway`},
		{"address of the other family", func(_ *Configuration, g *Group) {
			g.Members[1].Address = netip.MustParseAddrPort("[2001:db8::2]:9473")
		}, "group.members[1].address: is [2001:db8::2]:9473, and that of group.members[0] is of the other family"},
		{"port of metrics", func(_ *Configuration, g *Group) {
			g.Members[1].Address = netip.MustParseAddrPort("192.0.2.2:9470")
		}, "group.members[1].address: has port 9470 of metrics or health checks, choose another one"},
		{"port of flows", func(_ *Configuration, g *Group) {
			g.Members[1].Address = netip.MustParseAddrPort("192.0.2.2:20000")
		}, "group.members[1].address: has port 20000 inside snat.ports (16384-29999), choose one outside"},
		{"IP address twice", func(_ *Configuration, g *Group) {
			g.Members[2].Address = netip.MustParseAddrPort("192.0.2.2:9474")
		}, "group.members[2].address: is 192.0.2.2:9474, and that of group.members[1] is 192.0.2.2:9473: each " +
			"gateway needs an IP address of its own"},
		{"source of a martian", func(_ *Configuration, g *Group) { g.Members[1].Sources[0] = addr("127.0.0.1") },
			"group.members[1].sources[0]: is 127.0.0.1, write an address that backends can answer to"},
		{"source of two members", func(_ *Configuration, g *Group) { g.Members[1].Sources[0] = addr("198.51.100.2") },
			"group.members[1].sources[0]: is 198.51.100.2 like group.members[0].sources[1], choose an address"},
		{"source of all flows", func(c *Configuration, _ *Group) {
			c.SNAT.Addresses = []netip.Addr{addr("198.51.100.4")}
		}, "group.members[1].sources[1]: is 198.51.100.4 like snat.addresses[0], choose an address that nothing else"},
		{"source on the host link", func(_ *Configuration, g *Group) { g.Members[1].Sources[0] = addr("192.0.0.2") },
			"group.members[1].sources[0]: is 192.0.0.2 like the host link, choose an address that nothing else has"},
		{"source of a listener", func(_ *Configuration, g *Group) { g.Members[1].Sources[0] = addr("192.0.2.1") },
			"group.members[1].sources[0]: is 192.0.2.1 like group.members[0].address, choose an address that nothing"},
		{"source in a pool", func(c *Configuration, _ *Group) {
			c.AddressPools = []AddressPool{{Name: "p", Addresses: []string{"198.51.100.4/32"}}}
		}, "group.members[1].sources[1]: is 198.51.100.4 of addressPools[0], whose addresses Services get"},
		{"one source", func(_ *Configuration, g *Group) { g.Members[1].Sources = g.Members[1].Sources[1:] },
			"group.members[1].sources: has 198.51.100.4 2001:db8:f::3 2001:db8:f::4, give each gateway 2"},
		{"other families", func(_ *Configuration, g *Group) { g.Members[1].Sources = g.Members[1].Sources[2:] },
			"group.members[1].sources: has 2001:db8:f::3 2001:db8:f::4, give each gateway 2 addresses of each family"},
		{"no certificate", func(_ *Configuration, g *Group) { g.TLS.CertFile = "" },
			`group.tls.certFile: is "", write an absolute path`},
		{"relative authority", func(_ *Configuration, g *Group) { g.TLS.CAFile = "ca.crt" },
			`group.tls.caFile: is "ca.crt", write an absolute path`},
		{"nodes", fromNodes(func(*Configuration, *Group) {}), ""},
		{"nodes and members", fromNodes(func(_ *Configuration, g *Group) {
			*g = *sampleGroup()
			g.Nodes, g.Port = "a=b", 1
		}),
			`group.nodes: is "a=b", and group.members lists gateways: set one of the two`},
		{"nodes by no selector", fromNodes(func(_ *Configuration, g *Group) { g.Nodes = "a=b=c" }),
			"group.nodes: is no label selector: "},
		{"all nodes", fromNodes(func(_ *Configuration, g *Group) { g.Nodes = " " }),
			`group.nodes: is " ", which selects all Nodes: write a label of gateways`},
		{"nodes without an API server", fromNodes(func(c *Configuration, _ *Group) { c.Kubernetes.Enabled = false }),
			"group.nodes: needs Nodes of an API server: set kubernetes.enabled, or list the gateways in group.members"},
		{"no port for nodes", fromNodes(func(_ *Configuration, g *Group) { g.Port = 0 }),
			"group.port: is 0, choose from 1 to 65535"},
		{"port of flows for nodes", fromNodes(func(_ *Configuration, g *Group) { g.Port = 20000 }),
			"group.port: has port 20000 inside snat.ports (16384-29999), choose one outside"},
		{"nodes and no certificate", fromNodes(func(_ *Configuration, g *Group) { g.TLS.CertFile = "" }),
			`group.tls.certFile: is "", write an absolute path`},
		{"state in memory", func(c *Configuration, g *Group) { g.StateDir = c.StateDir },
			"group.stateDir: is /run/sluice like stateDir, which the loss of memory empties"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, g := Default(), sampleGroup()
			c.change(cfg, g)
			var k check
			k.group(cfg, g)
			switch {
			case c.want == "" && len(k.errs) > 0:
				t.Errorf("refused: %v", k.errs)
			case c.want != "" && (len(k.errs) != 1 || !strings.HasPrefix(k.errs[0].Error(), ": "+c.want)):
				t.Errorf("got  %v\nwant %s", k.errs, c.want)
			}
		})
	}
}

// TestGroupOnHost: the node must be one of the gateways.
func TestGroupOnHost(t *testing.T) {
	for name, want := range map[string]string{
		"gw-b": "", "gw-x": ": group.members: has no entry for gw-x, the name of this node: add it, or set nodeName",
	} {
		var k check
		c := Default()
		c.NodeName = name
		k.groupHost(c, sampleGroup())
		if got := k.errs.Error(); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
