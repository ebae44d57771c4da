package compiler

import (
	"net/netip"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// Config is the compiler's input besides objects.
type Config struct {
	// NodeName is this node's name: the endpoints with this nodeName are local.
	NodeName string
	// LocalAddresses are all addresses of this node. NodeAddresses are the local addresses that
	// accept node ports.
	LocalAddresses, NodeAddresses []header.Addr
	// ExternalIPs are the addresses that Services may have as external IPs. Empty: all addresses
	// except this node's, which are LocalAddresses and OtherAddresses.
	ExternalIPs []netip.Prefix
	// OtherAddresses are further addresses of this node: the addresses in its Node object, and
	// addresses whose scope is not global.
	OtherAddresses []header.Addr
	// DeniedHostPorts are ports of this node's addresses that no Service may have as an endpoint.
	DeniedHostPorts []services.PortRange
	// SNAT4 and SNAT6 are source addresses towards backends, SNATPorts their source ports.
	SNAT4, SNAT6 []header.Addr
	SNATPorts    services.PortRange
	// SNATByRoute4 and SNATByRoute6: the route selects one of these addresses.
	SNATByRoute4, SNATByRoute6 bool
	// Group4, Group6 and GroupSources: see services.Snapshot. Replies to all GroupSources are
	// steered; Group4 and Group6 are among them.
	Group4, Group6 header.Addr
	GroupSources   []header.Addr
	// SelectKey is the hash key of selection and Maglev tables; all gateways have the same.
	SelectKey [2]uint64
	// UnservedPort selects the answer to packets for a port of a VIP without a service.
	UnservedPort services.UnservedPolicy
	// ResetUnknown: see services.Snapshot.
	ResetUnknown bool

	// ClusterIPs: ClusterIPs are frontends as well.
	ClusterIPs bool
	// ClusterCIDRs are the addresses of pods; empty: no client is known to be a pod.
	ClusterCIDRs []netip.Prefix
	// MasqueradeAll: no client of a ClusterIP keeps its address.
	MasqueradeAll bool
	// StrictSourceRanges: source ranges apply to node ports and external IPs as well.
	StrictSourceRanges bool
	// Scheduler is the scheduler of Services without the annotation.
	Scheduler services.Scheduler
	// Limits are the limits of Services without an annotation for them.
	Limits services.Limits
	// Checks are the checks of Services without an annotation for them.
	Checks objects.Checks
	// TunnelPort is the UDP port of the tunnel to nodes, which no endpoint may have: see
	// services.Snapshot. 0: there is no tunnel, and packets of direct Services are translated.
	TunnelPort uint16
	// RetryOther: see services.Snapshot.
	RetryOther bool

	// MaxFrontends, MaxAddrs and MaxSources are the sizes of the kernel program's maps: frontends
	// with an address, addresses (VIPs and kept sources), kept sources. 0 is no bound.
	MaxFrontends, MaxAddrs, MaxSources int
	// NamespaceShare is the percentage of each of these maps, of all backends and of the slots of
	// all tables that the Services of one namespace may use. 0 is no bound.
	NamespaceShare int
}

func (cfg *Config) addresses() []header.Addr {
	return slices.Concat(cfg.LocalAddresses, cfg.NodeAddresses, cfg.SNAT4, cfg.SNAT6, cfg.GroupSources)
}

// settings are the Config in force and sets that are derived from it.
type settings struct {
	Config
	pods  [2]bool              // by family: ClusterCIDRs has one
	nodes map[header.Addr]bool // the addresses of this node
}

// set puts a Config into force.
func (c *settings) set(cfg Config) {
	*c = settings{Config: cfg, nodes: map[header.Addr]bool{}}
	for _, p := range cfg.ClusterCIDRs {
		c.pods[objects.Family(p.Addr().Is6())] = true
	}
	for _, a := range slices.Concat(cfg.LocalAddresses, cfg.OtherAddresses) {
		c.nodes[a] = true
	}
}

// serves reports whether an address of a Service is a frontend here.
func (c *settings) serves(s *objects.Service, v objects.VIP) bool {
	return v.Kind != services.ClusterIP || c.ClusterIPs && !c.direct(s)
}

// nodePorts reports whether a port of a Service is a frontend at the node's addresses. Other nodes
// do not have these addresses, so a direct Service has no such frontend.
func (c *settings) nodePorts(s *objects.Service, p *objects.ServicePort) bool {
	return p.NodePort != 0 && !c.direct(s)
}

// direct reports whether a Service has direct return; s may be nil.
func (c *settings) direct(s *objects.Service) bool { return s != nil && s.Direct && c.TunnelPort != 0 }

// schedulerOf returns the scheduler of the Service, or the configured default.
func (c *settings) schedulerOf(s *objects.Service) services.Scheduler {
	switch {
	case s.Scheduler != nil:
		return *s.Scheduler
	case c.direct(s) && !c.Scheduler.ByHash():
		return services.Maglev
	}
	return c.Scheduler
}

// checkOf returns the check of a service port; false if it has none. The Service's checks replace
// the configured ones.
func (c *settings) checkOf(s *objects.Service, p *objects.ServicePort) (objects.Check, bool) {
	if c.direct(s) {
		return objects.Check{}, true // CheckNone: the gateway sees no answers of nodes, and nodes are no endpoints
	}
	if s.Checks != nil {
		return s.Checks.Of(p)
	}
	return c.Checks.Of(p)
}
