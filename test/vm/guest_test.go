package vm

import (
	"testing"
)

func TestNICsOfFlags(t *testing.T) {
	two, err := ParsePair("left=igb")
	if err != nil || len(two) != 2 || two[0] != (NIC{"left", "igb", "left"}) ||
		two[1] != (NIC{"left-peer", "virtio-net", "left"}) {
		t.Errorf("left=igb: %+v, %v", two, err)
	}
	one, err := ParseNIC("b=e1000@wire")
	if err != nil || one != (NIC{"b", "e1000", "wire"}) {
		t.Errorf("b=e1000@wire: %+v, %v", one, err)
	}
	for _, bad := range []string{"", "left", "=igb", "left=ixgbe", "elevenchars=igb"} {
		if got, err := ParsePair(bad); err == nil {
			t.Errorf("pair %q: %+v", bad, got)
		}
	}
	for _, bad := range []string{"left=igb", "left@wire", "=igb@wire", "left=igb@", "sixteen-letters-=igb@wire"} {
		if got, err := ParseNIC(bad); err == nil {
			t.Errorf("NIC %q: %+v", bad, got)
		}
	}
}
