package compiler

import (
	"fmt"
	"strings"

	"sluice.dev/sluice/control/objects"
)

// unmatched warns of a service port that no slice has. A slice's port must have the same name and
// protocol (discovery/v1 EndpointPort); with another one the Service seems to have no endpoints.
// Slices without endpoints or ports are ignored: the pods may not be there yet.
func unmatched(u *unit, i int, sp objects.ServicePort, o *offers) []objects.Problem {
	if len(o.of(sp)) > 0 {
		return nil
	}
	have := o.others()
	if len(have) == 0 {
		return nil
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
	return fmt.Sprintf("port %q (%s)", objects.Clip(name), objects.ProtocolName(proto))
}
