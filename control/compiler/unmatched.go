package compiler

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/control/objects"
)

// unmatched warns of a service port that no slice has. A slice's port must have the same name and
// protocol (discovery/v1 EndpointPort); with another one the Service seems to have no endpoints.
// Slices without endpoints or ports are ignored: the pods may not be there yet.
func unmatched(u *unit, i int, sp objects.ServicePort) []objects.Problem {
	var have []string
	for _, s := range u.slices {
		for _, p := range s.Ports {
			if p.Name == sp.Name && p.Proto == sp.Proto {
				return nil
			}
			if len(s.Endpoints) > 0 {
				have = append(have, portText(p.Name, p.Proto))
			}
		}
	}
	if len(have) == 0 {
		return nil
	}
	slices.Sort(have)
	have = slices.Compact(have)
	if more := len(have) - objects.MaxFieldProblems; more > 0 {
		have = append(have[:objects.MaxFieldProblems], fmt.Sprintf("%d others", more))
	}
	return []objects.Problem{{Object: u.service.ID, Field: fmt.Sprintf("spec.ports[%d]", i), Severity: objects.Warning,
		Message: fmt.Sprintf("no EndpointSlice has %s, they have %s: it gets no endpoints until name and protocol "+
			"are the same in both",
			portText(sp.Name, sp.Proto), strings.Join(have, ", "))}}
}

func portText(name string, proto uint8) string {
	if name == "" {
		return "a port without a name (" + objects.ProtocolName(proto) + ")"
	}
	return fmt.Sprintf("port %q (%s)", name, objects.ProtocolName(proto))
}
