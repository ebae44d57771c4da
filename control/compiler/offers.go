package compiler

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/control/objects"
)

// offers are the ports of a unit's slices, by name and protocol. Without this index each of
// thousands of ports of a Service would be compared with each of up to 20,000 ports of each slice.
type offers struct {
	slices []*objects.Slice
	at     map[portID][]offer // by slice, in the order of slices
	have   []string           // the names of all ports, for messages; nil before it is needed
}

type offer struct {
	slice *objects.Slice
	port  objects.SlicePort
}

// newOffers finds the wanted ports of slices.
func newOffers(list []*objects.Slice, wanted map[portID]bool) *offers {
	o := &offers{slices: list, at: map[portID][]offer{}}
	for _, s := range list {
		for _, p := range s.Ports {
			if id := (portID{p.Name, p.Proto}); wanted[id] {
				o.at[id] = append(o.at[id], offer{s, p})
			}
		}
	}
	return o
}

// others lists ports of the slices that have endpoints, at most objects.MaxFieldProblems, for
// messages.
func (o *offers) others() []string {
	if o.have != nil {
		return o.have
	}
	ids := map[portID]bool{}
	for _, s := range o.slices {
		if len(s.Endpoints) == 0 {
			continue
		}
		for _, p := range s.Ports {
			ids[portID{p.Name, p.Proto}] = true
		}
	}
	o.have = make([]string, 0, len(ids))
	for id := range ids {
		o.have = append(o.have, id.String())
	}
	slices.Sort(o.have)
	o.have = slices.Compact(o.have)
	if more := len(o.have) - objects.MaxFieldProblems; more > 0 {
		o.have = append(o.have[:objects.MaxFieldProblems], fmt.Sprintf("%d others", more))
	}
	return o.have
}

// unmatched returns a warning if no slice has port i of a Service. A slice's port must have the
// same name and protocol (discovery/v1 EndpointPort); otherwise the Service seems to have no
// endpoints. Slices without endpoints or ports are ignored: the pods may not be there yet.
func (o *offers) unmatched(s *objects.Service, i int, id portID) []objects.Problem {
	if len(o.at[id]) > 0 {
		return nil
	}
	have := o.others()
	if len(have) == 0 {
		return nil
	}
	return []objects.Problem{{Object: s.ID, Field: fmt.Sprintf("spec.ports[%d]", i), Severity: objects.Warning,
		Message: fmt.Sprintf("no EndpointSlice has %s, they have %s: it gets no endpoints until name and protocol "+
			"are the same in both",
			id, strings.Join(have, ", "))}}
}
