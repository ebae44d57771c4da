package compiler_test

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// render writes all that a compile says, without the numbers that depend on
// history, so that two compiles can be compared and people can read one.
func render(s *services.Snapshot, problems []objects.Problem) string {
	var b strings.Builder
	section(&b, "frontends", renderFrontends(s, false))
	section(&b, "backends", renderBackends(s))
	section(&b, "addresses", renderAddrs(s))
	var lines []string
	for _, p := range problems {
		lines = append(lines, fmt.Sprintf("%-7s %v", p.Severity, p))
	}
	section(&b, "problems", lines)
	return b.String()
}

func section(b *strings.Builder, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(b, "%s\n", title)
	for _, l := range lines {
		fmt.Fprintf(b, "  %s\n", l)
	}
}

// renderFrontends writes what is not the usual only where it is not: pods that
// get something else than outside clients, who is allowed, affinity, schedulers and
// hints.
func renderFrontends(s *services.Snapshot, tables bool) (lines []string) {
	s.Frontends(func(f *services.Frontend) bool {
		line := fmt.Sprintf("%s %s %s%s", key(f.Key), f.Kind, serviceName(f.Service), renderService(f))
		if f.Allowed != nil {
			line += fmt.Sprintf(" from %v", f.Allowed.List())
		}
		outside, pods := renderRule(s, &f.Outside, tables), renderRule(s, &f.Pod, tables)
		line += outside
		if pods != outside {
			line += ", pods" + pods
		}
		if tables {
			line += fmt.Sprintf(" identity %x", f.Service.Identity)
		}
		lines = append(lines, line)
		return true
	})
	slices.Sort(lines)
	return lines
}

func renderService(f *services.Frontend) (line string) {
	if n := f.Service.AffinitySeconds; n != 0 {
		line += fmt.Sprintf(" affinity %ds", n)
	}
	if f.Service.Scheduler != services.Maglev {
		line += " " + f.Service.Scheduler.String()
	}
	if f.Service.ProxyProtocol {
		line += " proxy-v2"
	}
	if f.Service.Direct {
		line += " direct"
	}
	topology := f.Service.Topology[0]
	if !f.Key.Addr.Is4() {
		topology = f.Service.Topology[1]
	}
	return line + map[services.Topology]string{services.TopologyZone: " hints-zone",
		services.TopologyNode: " hints-node"}[topology]
}

func renderRule(s *services.Snapshot, r *services.Rule, tables bool) (line string) {
	if r.KeepClient {
		line = " keep-client"
	}
	if len(r.Set.Backends) == 0 {
		return line + map[services.Empty]string{services.EmptyReject: " reject",
			services.EmptyDrop: " drop"}[r.Set.Empty]
	}
	line += " ->"
	for i, ref := range r.Set.Backends {
		be := s.Backend(ref)
		line += " " + hostPort(be.Addr, be.Port)
		if r.Set.Weights != nil {
			line += fmt.Sprintf("*%d", r.Set.Weights[i])
		}
	}
	if tables {
		h := fnv.New64a()
		for _, slot := range r.Set.Table {
			h.Write([]byte{byte(slot), byte(slot >> 8)})
		}
		line += fmt.Sprintf(" table %d/%x", len(r.Set.Table), h.Sum64())
	}
	return line
}

func renderBackends(s *services.Snapshot) (lines []string) {
	s.Backends(func(b *services.Backend) bool {
		line := fmt.Sprintf("%s %s/%s", serviceName(s.Service(b.Service)), hostPort(b.Addr, b.Port), proto(b.Proto))
		for i, name := range []string{
			"serving", "ready", "terminating", "local", "drained", "hinted-node", "hinted-zone",
			"down",
		} {
			if b.Flags>>i&1 != 0 {
				line += " " + name
			}
		}
		if b.Weight != 1 {
			line += fmt.Sprintf(" weight %d", b.Weight)
		}
		if !slices.Contains(s.Service(b.Service).Backends, b.Ref) {
			line += " NOT LISTED BY ITS SERVICE"
		}
		lines = append(lines, line)
		return true
	})
	slices.Sort(lines)
	return lines
}

func renderAddrs(s *services.Snapshot) (lines []string) {
	s.Addrs(func(a header.Addr, f services.AddrFlags) bool {
		lines = append(lines, a.String()+addrFlags(f))
		return true
	})
	slices.Sort(lines)
	return lines
}

func renderSteer(s *steer.Set) (lines []string) {
	for _, k := range s.Frontends {
		lines = append(lines, "frontend "+key(k))
	}
	for _, n := range s.NodePorts {
		lines = append(lines, fmt.Sprintf("node port %d/%s IPv%d", n.Port, proto(n.Proto),
			map[bool]int{false: 4, true: 6}[n.V6]))
	}
	for _, a := range s.Addrs {
		lines = append(lines, "address "+a.Addr.String()+addrFlags(a.Flags))
	}
	for _, k := range s.KeepSources {
		lines = append(lines, "keep-source "+key(services.FrontendKey(k)))
	}
	return lines
}

func addrFlags(f services.AddrFlags) (s string) {
	for i, name := range []string{"vip", "node", "snat", "local"} {
		if f>>i&1 != 0 {
			s += " " + name
		}
	}
	return s
}

func key(k services.FrontendKey) string {
	host := hostPort(k.Addr, k.Port)
	switch k.Addr {
	case services.AnyIPv4:
		host = fmt.Sprintf("node-IPv4:%d", k.Port)
	case services.AnyIPv6:
		host = fmt.Sprintf("node-IPv6:%d", k.Port)
	}
	return host + "/" + proto(k.Proto)
}

func hostPort(a header.Addr, port uint16) string {
	if a.Is4() {
		return fmt.Sprintf("%v:%d", a, port)
	}
	return fmt.Sprintf("[%v]:%d", a, port)
}

func proto(p uint8) string {
	return map[uint8]string{header.ProtoTCP: "TCP", header.ProtoUDP: "UDP", header.ProtoSCTP: "SCTP"}[p]
}

func serviceName(s *services.Service) string {
	name := s.Namespace + "/" + s.Name
	if s.PortName != "" {
		name += ":" + s.PortName
	}
	return name
}
