package compiler

import (
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// Anybody who may write a Service may write any address as an external IP, also one of this node,
// whose packets are the node's own. The status is written by controllers.

// permits reports whether a Service may have an address, if it is an external IP.
func (r *run) permits(v objects.VIP) bool {
	if v.Kind != services.ExternalIP {
		return true
	}
	if len(r.cfg.ExternalIPs) == 0 {
		return !r.nodes[v.Addr]
	}
	return r.permitted(v.Addr)
}

// permitted reports whether the operator named an address.
func (r *run) permitted(addr header.Addr) bool {
	a := addr.Netip()
	return slices.ContainsFunc(r.cfg.ExternalIPs, func(p netip.Prefix) bool { return p.Contains(a) })
}

// notPermitted returns a problem for each external IP that a Service may not have.
func (r *run) notPermitted(s *objects.Service) (problems []objects.Problem) {
	var refused []objects.FieldProblem
	for _, v := range s.VIPs {
		if r.permits(v) {
			continue
		}
		why := "is an address of this node: the operator must allow it (proxy.externalIPs)"
		if len(r.cfg.ExternalIPs) > 0 {
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
// program can look up sockets of TCP and UDP, and none of SCTP.
func (r *run) unguarded(v objects.VIP, proto uint8) bool {
	return proto == header.ProtoSCTP && r.nodes[v.Addr] && !r.permitted(v.Addr)
}

func unguardedProblem(s *objects.Service, port int, v objects.VIP) objects.Problem {
	return objects.Problem{Object: s.ID, Field: fmt.Sprintf("spec.ports[%d]", port), Severity: objects.Refused,
		Reason: objects.ReasonAddressNotAllowed,
		Message: fmt.Sprintf("SCTP at %q, an address of this node, could take packets of the node's own associations: "+
			"the operator must allow it (proxy.externalIPs)", v.Addr.Netip())}
}

// deniedHostPort reports whether an endpoint is a service of the node itself that no client may
// reach. Packets to it would come by the host link, so the host's firewall would not see the
// interface that they came in by.
func (r *run) deniedHostPort(a header.Addr, port uint16) bool {
	return r.nodes[a] && slices.ContainsFunc(r.cfg.DeniedHostPorts,
		func(p services.PortRange) bool { return p.Contains(port) })
}
