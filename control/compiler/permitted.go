package compiler

import (
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// Any author of a Service may write any address as an external IP, including an address of this
// node, where packets are meant for the node itself. Controllers write the status.

// permits reports whether a Service may have an address, if it is an external IP.
func (c *settings) permits(v objects.VIP) bool {
	if v.Kind != services.ExternalIP {
		return true
	}
	if len(c.ExternalIPs) == 0 {
		return !c.nodes[v.Addr]
	}
	return c.permitted(v.Addr)
}

// permitted reports whether the operator named an address.
func (c *settings) permitted(addr header.Addr) bool {
	a := addr.Netip()
	return slices.ContainsFunc(c.ExternalIPs, func(p netip.Prefix) bool { return p.Contains(a) })
}

// notPermitted returns a problem for each external IP that a Service may not have.
func (c *settings) notPermitted(s *objects.Service) (problems []objects.Problem) {
	var refused []objects.FieldProblem
	for _, v := range s.VIPs {
		if c.permits(v) {
			continue
		}
		why := "is an address of this node: the operator must allow it (proxy.externalIPs)"
		if len(c.ExternalIPs) > 0 {
			why = "is none of the addresses that the operator allows (proxy.externalIPs)"
		}
		refused = append(refused, objects.FieldProblem{Field: "spec.externalIPs", Severity: objects.Refused,
			Message: fmt.Sprintf("%q %s", v.Addr.Netip(), why)})
	}
	for _, f := range objects.LimitProblems(refused) {
		p := f.Problem(s.ID)
		p.Reason = objects.ReasonAddressNotAllowed
		problems = append(problems, p)
	}
	return problems
}

// unguarded reports whether a frontend could take packets of the node's own sockets: the kernel
// program can look up TCP and UDP sockets, but no SCTP sockets.
func (c *settings) unguarded(v objects.VIP, proto uint8) bool {
	return proto == header.ProtoSCTP && c.nodes[v.Addr] && !c.permitted(v.Addr)
}

func unguardedProblem(s *objects.Service, port int, v objects.VIP) objects.Problem {
	return objects.Problem{Object: s.ID, Field: fmt.Sprintf("spec.ports[%d]", port), Severity: objects.Refused,
		Reason: objects.ReasonAddressNotAllowed,
		Message: fmt.Sprintf("SCTP at %q, an address of this node, could take packets of the node's own associations: "+
			"the operator must allow it (proxy.externalIPs)", v.Addr.Netip())}
}

// deniedHostPort reports whether an address and port belongs to a service of the node itself that
// no client may reach. Packets to it would arrive on the host link, so the host's firewall would
// not see the original interface.
func (c *settings) deniedHostPort(a header.Addr, port uint16) bool {
	return c.nodes[a] && slices.ContainsFunc(c.DeniedHostPorts,
		func(p services.PortRange) bool { return p.Contains(port) })
}
