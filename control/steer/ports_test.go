package steer

import (
	"slices"
	"testing"

	"sluice.dev/sluice/nat/header"
)

// TestPortSet: the set has the added ports, by family and protocol, and no ports of other
// protocols.
func TestPortSet(t *testing.T) {
	list := []NodePort{
		{false, header.ProtoTCP, 0}, {false, header.ProtoTCP, 65535}, {false, header.ProtoUDP, 64},
		{false, header.ProtoSCTP, 63}, {true, header.ProtoTCP, 1}, {true, header.ProtoUDP, 64},
		{true, header.ProtoSCTP, 7},
	}
	p := Ports(append(slices.Clone(list), NodePort{false, header.ProtoICMP, 9}))
	if got := p.List(); !slices.Equal(got, list) || p.Len() != len(list) {
		t.Errorf("%d ports %v, want %v", p.Len(), got, list)
	}
	for _, n := range list {
		if !p.Has(n) || p.Has(NodePort{n.V6, n.Proto, n.Port + 5}) {
			t.Errorf("%+v", n)
		}
	}
	rest := p.Without(Ports(list[2:]))
	if got := rest.List(); !slices.Equal(got, list[:2]) {
		t.Errorf("without: %v", got)
	}
	if got := rest.With(Ports(list[2:])).List(); !slices.Equal(got, list) {
		t.Errorf("with: %v", got)
	}
	if got := p.In(Ports(list[1:3])).List(); !slices.Equal(got, list[1:3]) {
		t.Errorf("in: %v", got)
	}
	var none *PortSet
	if p.Without(p) != none || none.With(p) != p || none.In(p) != none || none.Has(list[0]) || none.Len() != 0 ||
		Ports(nil) != none || AllPorts().Len() != 6*65536 {
		t.Error("an empty set is not nil, or not empty")
	}
}
