package compiler

import (
	"fmt"
	"slices"

	"sluice.dev/sluice/control/objects"
)

// portID is what a Service's port and a slice's have in common (discovery/v1 EndpointPort).
type portID struct {
	name  string
	proto uint8
}

// offers are the ports of a unit's slices, found by what they have in common with a Service's port.
// Each of thousands of ports of a Service would otherwise be compared with each of up to 20,000 of
// each slice.
type offers struct {
	unit *unit
	at   map[portID][]offer // by slice, in the order of unit.slices
	have []string           // the text of all; nil before it is needed
}

type offer struct {
	slice *objects.Slice
	port  objects.SlicePort
}

func (u *unit) offers() *offers {
	o := &offers{unit: u, at: map[portID][]offer{}}
	wanted := map[portID]bool{}
	for _, p := range u.ports {
		wanted[portID{p.spec.Name, p.spec.Proto}] = true
	}
	for _, s := range u.slices {
		for _, p := range s.Ports {
			if id := (portID{p.Name, p.Proto}); wanted[id] {
				o.at[id] = append(o.at[id], offer{s, p})
			}
		}
	}
	return o
}

func (o *offers) of(p objects.ServicePort) []offer { return o.at[portID{p.Name, p.Proto}] }

// others lists the ports of the slices that have endpoints, a few of them.
func (o *offers) others() []string {
	if o.have != nil {
		return o.have
	}
	ids := map[portID]bool{}
	for _, s := range o.unit.slices {
		if len(s.Endpoints) == 0 {
			continue
		}
		for _, p := range s.Ports {
			ids[portID{p.Name, p.Proto}] = true
		}
	}
	o.have = make([]string, 0, len(ids))
	for id := range ids {
		o.have = append(o.have, portText(id.name, id.proto))
	}
	slices.Sort(o.have)
	o.have = slices.Compact(o.have)
	if more := len(o.have) - objects.MaxFieldProblems; more > 0 {
		o.have = append(o.have[:objects.MaxFieldProblems], fmt.Sprintf("%d others", more))
	}
	return o.have
}
