package control

import (
	"fmt"
	"slices"
	"strings"
)

// unmatched warns of a service port that no slice has: a slice's port must have its name and
// protocol (discovery/v1 EndpointPort), and one that differs looks like a Service without
// endpoints. Slices without endpoints or ports say nothing, as those of a Service whose pods
// are not there yet.
func unmatched(u *unit, i int, sp servicePort) []Problem {
	var have []string
	for _, s := range u.slices {
		for _, p := range s.ports {
			if p.name == sp.name && p.proto == sp.proto {
				return nil
			}
			if len(s.endpoints) > 0 {
				have = append(have, portText(p.name, p.proto))
			}
		}
	}
	if len(have) == 0 {
		return nil
	}
	slices.Sort(have)
	have = slices.Compact(have)
	if more := len(have) - maxFaults; more > 0 {
		have = append(have[:maxFaults], fmt.Sprintf("%d others", more))
	}
	return []Problem{{Object: u.service.id, Field: fmt.Sprintf("spec.ports[%d]", i), Severity: Warning,
		Message: fmt.Sprintf("no EndpointSlice has %s, they have %s: it gets no endpoints until name and protocol are the same in both",
			portText(sp.name, sp.proto), strings.Join(have, ", "))}}
}

func portText(name string, proto uint8) string {
	if name == "" {
		return "a port without a name (" + protocolName(proto) + ")"
	}
	return fmt.Sprintf("port %q (%s)", name, protocolName(proto))
}
