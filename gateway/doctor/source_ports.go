package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/serve/status"
)

// nearlyAll is the used share of the source ports towards one backend from which on doctor warns.
const nearlyAll = 0.8

// sourcePorts reports the number of source ports towards one backend, and the backends that use
// most of them.
func (e *examination) sourcePorts() {
	c := e.f.Config
	if e.f.Running != nil {
		for _, change := range e.f.Running.Config.NeedRestart {
			if strings.HasPrefix(change, "snat.") {
				e.add(Warn, "source-ports", "", "the daemon uses other source ports than the file: "+change,
					"restart the daemon to use the file's")
			}
		}
	}
	if err := e.f.PortsError; err != nil {
		e.add(Warn, "source-ports", "", "the daemon does not report how many are in use: "+err.Error(),
			"try again; use a command and a daemon of the same version")
	}
	for family, name := range [2]string{"IPv4", "IPv6"} {
		ports, of := 0, "of the interface"
		for _, a := range c.SNAT.Addresses {
			if a.Is6() != (family == 1) {
				continue
			}
			of = "of snat.addresses"
			if slices.Contains(e.f.Addresses, a) {
				ports += c.SNAT.Ports.Count()
			} else {
				ports += int(services.OwnPorts.Count)
			}
		}
		if ports == 0 {
			ports = c.SNAT.Ports.Count()
		}
		few := false
		for i := range e.f.PortsInUse {
			if v := &e.f.PortsInUse[i]; strings.EqualFold(v.Family, name) && e.backendPorts(name, v) {
				few = true
			}
		}
		if !few {
			e.ok("source-ports", name, fmt.Sprintf("%d flows of each protocol to one backend, by the ports %s", ports,
				of))
		}
	}
}

// backendPorts warns about the backend of a family and protocol that has few ports left, and
// reports whether there is one.
func (e *examination) backendPorts(family string, v *status.SourcePortsView) bool {
	b := &v.MostUsed
	if v.LeastAvailable.UnavailableRatio() >= nearlyAll {
		b = &v.LeastAvailable
	}
	if b.UsedRatio() < nearlyAll {
		return false
	}
	found := fmt.Sprintf("%s to %v uses %d of the %d ports of %v", v.Protocol, b.Backend, b.Used, b.Ports, b.Source)
	do := e.morePorts(b)
	if b.UnavailableRatio() < nearlyAll {
		found += fmt.Sprintf("; if no other is free, new flows reuse %d of them", b.Used-b.Unavailable)
	} else {
		found += "; if none is free, new flows are rejected"
		if v.Protocol == "UDP" {
			do += fmt.Sprintf(". If most requests get no answer, a shorter flows.timeouts.udpUnreplied (%v) frees "+
				"their ports sooner; later answers are then dropped", e.f.Config.Flows.Timeouts.UDPUnreplied)
		}
	}
	e.add(Warn, "source-ports", family+" "+v.Protocol, found, do)
	return true
}

// morePorts returns how a backend gets more source ports. Towards a backend that the kernel
// forwards to, the source is the host link's address and not snat.addresses.
func (e *examination) morePorts(b *status.BackendPortsView) string {
	hostLink := func(p netip.Prefix) bool { return p.Contains(b.Source) }
	if slices.ContainsFunc(e.f.Config.HostLink.Addresses, hostLink) {
		return "widen snat.ports, or add endpoints: the kernel forwards to this one, so its packets have the " +
			"address of the host link"
	}
	return fmt.Sprintf("add to snat.addresses an address that is routed to this node and that no interface has: such "+
		"an address has %d ports", services.OwnPorts.Count)
}
