package links

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestNotServed: an interface is served if the gateway has it, or an interface through which its
// packets pass. It counts as served if its kind is unknown.
func TestNotServed(t *testing.T) {
	t.Parallel()
	all := []Link{
		{Name: "lo", Index: 1, Kind: "device", Loopback: true},
		{Name: "eth0", Index: 2, Kind: "device", Master: 10},
		{Name: "eth1", Index: 3, Kind: "device", Master: 10},
		{Name: "eth2", Index: 4, Kind: "device"},
		{Name: "eth2.7", Index: 5, Kind: "vlan", Parent: 4},
		{Name: "eth2.7.8", Index: 6, Kind: "vlan", Parent: 5},
		{Name: "eth3", Index: 7, Kind: "device"},
		{Name: "veth0", Index: 8, Kind: "veth", Parent: 4},   // its peer has the index, in this namespace
		{Name: "vxlan0", Index: 9, Kind: "vxlan", Parent: 4}, // unknown kind
		{Name: "bond0", Index: 10, Kind: "bond", Master: 11},
		{Name: "br0", Index: 11, Kind: "bridge"},
		{Name: "br0.5", Index: 12, Kind: "vlan", Parent: 11},
		{Name: "br1", Index: 13, Kind: "bridge"},
		{Name: "eth4", Index: 14, Kind: "device", Master: 15},
		{Name: "ovs-system", Index: 15, Kind: "openvswitch"},
		{Name: "br-ex", Index: 16, Kind: "openvswitch"},
		{Name: "a", Index: 17, Kind: "vlan", Parent: 18}, // a cycle, which the kernel does not make
		{Name: "b", Index: 18, Kind: "vlan", Parent: 17},
	}
	for gateway, want := range map[string]string{
		"":           "",
		"eth2":       "bond0 br0 br0.5 br1 eth0 eth1 eth3 eth4 veth0",
		"eth2.7":     "bond0 br0 br0.5 br1 eth0 eth1 eth2 eth3 eth4 veth0",
		"eth0":       "br1 eth1 eth2 eth2.7 eth2.7.8 eth3 eth4 veth0",
		"bond0":      "br1 eth2 eth2.7 eth2.7.8 eth3 eth4 veth0",
		"br0":        "br1 eth0 eth1 eth2 eth2.7 eth2.7.8 eth3 eth4 veth0",
		"eth4":       "bond0 br0 br0.5 br1 eth0 eth1 eth2 eth2.7 eth2.7.8 eth3 veth0",
		"eth2 eth0":  "br1 eth1 eth3 eth4 veth0",
		"eth9 ethX":  "bond0 br0 br0.5 br1 eth0 eth1 eth2 eth2.7 eth2.7.8 eth3 eth4 veth0",
		"eth2 veth0": "bond0 br0 br0.5 br1 eth0 eth1 eth3 eth4",
	} {
		got := strings.Join(slices.Sorted(maps.Keys(NotServed(all, strings.Fields(gateway)))), " ")
		if got != want {
			t.Errorf("gateway has %q: not served are\n%s, want\n%s", gateway, got, want)
		}
	}
}

// TestList: the list has the loopback interface, with its address.
func TestList(t *testing.T) {
	list, err := List()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(l Link) bool { return l.Loopback })
	if i < 0 || list[i].Kind != "device" || list[i].Index == 0 ||
		!slices.Contains(list[i].Networks, netip.MustParsePrefix("127.0.0.1/8")) {
		t.Errorf("%+v", list)
	}
}
