package config

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"sluice.dev/sluice/allocate/pools"
)

// Group is the gateways that keep copies of each other's flows. All of them have the same section:
// each finds its own line by its node's name (Node). Without members and nodes there is no group.
type Group struct {
	// Members are the gateways. A file with Nodes lists none: WithMembers sets the members that
	// are made from the Nodes.
	Members []GroupMember `json:"members"`
	// Nodes is a label selector of the Nodes whose gateways are the members (package
	// gateway/roster). Port is where each of them listens.
	Nodes string   `json:"nodes"`
	Port  int      `json:"port"`
	TLS   GroupTLS `json:"tls"`
	// StateDir is a directory on a disk, for a small file that must survive the loss of memory.
	StateDir string `json:"stateDir"`
}

// GroupMember is one gateway of the group.
type GroupMember struct {
	// Name is the name of its node, and a DNS name of its certificate.
	Name string `json:"name"`
	// Address is where it listens for the other members. Its connections to them come from the same
	// IP address.
	Address netip.AddrPort `json:"address"`
	// Sources are its source addresses, two of each family: for new flows, and for new flows after
	// a loss of memory.
	Sources []netip.Addr `json:"sources"`
}

// GroupTLS has PEM files, which are read again for each connection.
type GroupTLS struct {
	// CertFile is of this gateway, or of an authority that the gateways share: then each makes its
	// own certificate.
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`
	// CAFile has the certificates of the authorities that sign members' certificates.
	CAFile string `json:"caFile"`
}

// Enabled reports whether there is a group.
func (g *Group) Enabled() bool { return len(g.Members) > 0 || g.Nodes != "" }

// Find returns the index of the member with a name.
func (g *Group) Find(name string) (i int, found bool) {
	i = slices.IndexFunc(g.Members, func(m GroupMember) bool { return m.Name == name })
	return i, i >= 0
}

// MaxGroupMembers is one gateway with seven others: group.MaxMembers has room for one more.
const MaxGroupMembers = 8

// sourcesPerFamily are an open and a spare source address.
const sourcesPerFamily = 2

func (k *check) group(c *Configuration, g *Group) {
	k.between("group.port", g.Port, 1, 1<<16-1)
	k.absolute("group.stateDir", g.StateDir, false)
	k.rule("group.members", func(s *schema) { s.MaxItems = MaxGroupMembers })
	switch {
	case !g.Enabled():
		if g.TLS != (GroupTLS{}) {
			k.fail("group.members", "is empty, list the gateways of the group, or remove group.tls")
		}
		return
	case g.Nodes != "":
		k.groupNodes(c, g)
	default:
		if n := len(g.Members); n == 1 || n > MaxGroupMembers {
			k.fail("group.members", "has %d entries, a group has 2 to %d gateways", n, MaxGroupMembers)
		}
		k.groupNames(c, g)
		k.groupSources(c, g)
	}
	for _, f := range []struct{ path, value string }{
		{"group.tls.certFile", g.TLS.CertFile}, {"group.tls.keyFile", g.TLS.KeyFile},
		{"group.tls.caFile", g.TLS.CAFile},
	} {
		k.absolute(f.path, f.value, false)
	}
	if g.StateDir == c.StateDir {
		k.fail("group.stateDir", "is %s like stateDir, which the loss of memory empties: choose a directory on a disk",
			g.StateDir)
	}
}

// groupNodes checks the group whose members are Nodes.
func (k *check) groupNodes(c *Configuration, g *Group) {
	if len(g.Members) > 0 {
		k.fail("group.nodes", "is %q, and group.members lists gateways: set one of the two", g.Nodes)
	}
	if s, err := labels.Parse(g.Nodes); err != nil {
		k.fail("group.nodes", "is no label selector: %v", err)
	} else if s.Empty() {
		k.fail("group.nodes", "is %q, which selects all Nodes: write a label of gateways", g.Nodes)
	}
	if !c.Kubernetes.Enabled {
		k.fail("group.nodes", "needs Nodes of an API server: set kubernetes.enabled, or list the gateways in "+
			"group.members")
	}
	k.groupPort(c, "group.port", uint16(g.Port))
}

// groupPort checks a port on which gateways listen for each other.
func (k *check) groupPort(c *Configuration, path string, port uint16) {
	switch {
	case slices.Contains(c.ListensOn(), port):
		k.fail(path, "has port %d of metrics or health checks, choose another one", port)
	case c.SNAT.Ports.Contains(port):
		k.fail(path, "has port %d inside snat.ports (%s), choose one outside", port, c.SNAT.Ports)
	}
}

// WithMembers returns the configuration with a list of members that is not the file's.
func (c *Configuration) WithMembers(list []GroupMember) *Configuration {
	with := *c
	with.Group.Members = list
	return &with
}

// CheckMember returns an error if a gateway of Nodes could not work as a member with the other
// settings. The caller compares members.
func (c *Configuration) CheckMember(m *GroupMember) error {
	with := c.WithMembers([]GroupMember{*m})
	var k check
	k.groupNames(with, &with.Group)
	k.groupSources(with, &with.Group)
	if len(k.errs) == 0 {
		return nil
	}
	e := &k.errs[0]
	return fmt.Errorf("%s %s", strings.TrimPrefix(e.Path, "group.members[0]."), e.Problem)
}

// Families describes the families of a member's source addresses: IPv4, IPv6 or both.
func (m *GroupMember) Families() string { return familiesOf(m.Sources) }

// groupNames checks the names of the members, and where they listen.
func (k *check) groupNames(c *Configuration, g *Group) {
	for i, m := range g.Members {
		at := fmt.Sprintf("group.members[%d]", i)
		k.required(at + ".name")
		k.required(at + ".address")
		k.required(at + ".sources")
		if len(validation.IsDNS1123Subdomain(m.Name)) > 0 {
			k.fail(at+".name", "is %q, write the node's name, which its certificate has as a DNS name", m.Name)
		} else if first, _ := g.Find(m.Name); first < i {
			k.fail(at+".name", "is %s like group.members[%d], name each gateway once", m.Name, first)
		}
		a := m.Address
		switch {
		case !answerable(a.Addr()) || a.Port() == 0:
			k.fail(at+".address", "is %q, write address:port of the gateway such as 192.0.2.1:9473", addressText(a))
		case g.Members[0].Address.IsValid() && a.Addr().Is4() != g.Members[0].Address.Addr().Is4():
			k.fail(at+".address", "is %s, and that of group.members[0] is of the other family: choose one for all", a)
		default:
			k.groupPort(c, at+".address", a.Port())
		}
		for j, o := range g.Members[:i] {
			if o.Address.Addr() == a.Addr() {
				k.fail(at+".address", "is %s, and that of group.members[%d] is %s: each gateway needs an IP address "+
					"of its own", a, j, o.Address)
			}
		}
	}
}

func addressText(a netip.AddrPort) string {
	if a == (netip.AddrPort{}) {
		return ""
	}
	return a.String()
}

// groupSources checks the source addresses: only one gateway may take ports of each, and all need
// the same families, so that each can go on with the flows of every other one.
func (k *check) groupSources(c *Configuration, g *Group) {
	used := map[netip.Addr]string{}
	for i, a := range c.SNAT.Addresses {
		used[a] = fmt.Sprintf("snat.addresses[%d]", i)
	}
	for i, p := range c.HostLink.Addresses {
		used[p.Addr()], used[p.Addr().Next()] = fmt.Sprintf("hostLink.addresses[%d]", i), "the host link"
	}
	for i, m := range g.Members {
		used[m.Address.Addr()] = fmt.Sprintf("group.members[%d].address", i)
	}
	for i, m := range g.Members {
		at := fmt.Sprintf("group.members[%d].sources", i)
		for j, a := range m.Sources {
			if p := fmt.Sprintf("%s[%d]", at, j); !answerable(a) {
				k.fail(p, "is %s, write an address that backends can answer to", a)
			} else if other, twice := used[a]; twice {
				k.fail(p, "is %s like %s, choose an address that nothing else has", a, other)
			} else {
				used[a] = p
			}
		}
		if families := familiesOf(m.Sources); families != familiesOf(g.Members[0].Sources) || families == "" {
			k.fail(at, "has %s, give each gateway %d addresses of each family, the same families for all",
				sourcesText(m.Sources), sourcesPerFamily)
		}
	}
	for i := range c.AddressPools {
		k.groupPool(i, &c.AddressPools[i], used)
	}
}

func sourcesText(list []netip.Addr) string {
	if len(list) == 0 {
		return "no address"
	}
	return strings.Trim(fmt.Sprint(list), "[]")
}

// groupPool checks that a pool for Services of manifests has no source address.
func (k *check) groupPool(i int, p *AddressPool, used map[netip.Addr]string) {
	pool, err := pools.New(p.Name, p.spec())
	if err != nil {
		return // addressPools reports it
	}
	for _, a := range slices.SortedFunc(maps.Keys(used), netip.Addr.Compare) {
		if by := used[a]; strings.Contains(by, ".sources[") && pool.Contains(a) {
			k.fail(by, "is %s of addressPools[%d], whose addresses Services get: choose another one", a, i)
		}
	}
}

// familiesOf returns IPv4, IPv6 or both: the families of a list with the right number of addresses
// of each. It returns the empty string for other lists.
func familiesOf(list []netip.Addr) string {
	var n4, n6 int
	for _, a := range list {
		if a.Is4() {
			n4++
		} else {
			n6++
		}
	}
	valid := func(n int) bool { return n == 0 || n == sourcesPerFamily }
	switch {
	case !valid(n4) || !valid(n6) || n4+n6 == 0:
		return ""
	case n6 == 0:
		return "IPv4"
	case n4 == 0:
		return "IPv6"
	}
	return "both"
}

// groupHost checks the group on the host that is to be one of its gateways.
func (k *check) groupHost(c *Configuration, g *Group) {
	if !g.Enabled() || g.Nodes != "" {
		return
	}
	name, err := c.Node()
	if err != nil {
		k.fail("nodeName", "%v", err)
	} else if _, found := g.Find(name); !found {
		k.fail("group.members", "has no entry for %s, the name of this node: add it, or set nodeName", name)
	}
}
