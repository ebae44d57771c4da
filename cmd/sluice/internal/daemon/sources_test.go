package daemon

import (
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/neigh"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
)

// TestNodePortAddresses: what nodeAddresses selects, of a node with two interfaces of
// ours and one that is not.
func TestNodePortAddresses(t *testing.T) {
	all := []neigh.Address{
		{Link: -1, Prefix: netip.MustParsePrefix("127.0.0.1/8")},
		{Link: -1, Prefix: netip.MustParsePrefix("172.16.0.1/16"), Global: true, Usable: true},
		{Link: 0, Prefix: netip.MustParsePrefix("192.0.2.9/24"), Global: true, Secondary: true, Usable: true},
		{Link: 0, Prefix: netip.MustParsePrefix("192.0.2.1/24"), Global: true, Usable: true},
		{Link: 1, Prefix: netip.MustParsePrefix("10.0.0.1/8"), Global: true, Usable: true},
		{Link: 0, Prefix: netip.MustParsePrefix("2001:db8::9/64"), Global: true},
		{Link: 0, Prefix: netip.MustParsePrefix("2001:db8::1/64"), Global: true, Usable: true},
		{Link: 0, Prefix: netip.MustParsePrefix("fe80::1/64"), Usable: true},
	}
	primary := []config.AddressSelector{{Primary: true}}
	for _, tt := range []struct {
		name  string
		which []config.AddressSelector
		node  objects.NodeInfo
		want  []string
	}{
		{"all of our interfaces", nil, objects.NodeInfo{}, []string{"192.0.2.9", "192.0.2.1", "10.0.0.1", "2001:db8::9", "2001:db8::1"}},
		{"a network", []config.AddressSelector{{Prefix: netip.MustParsePrefix("172.16.0.0/12")}}, objects.NodeInfo{}, []string{"172.16.0.1"}},
		{"primary, of the Node", primary, objects.NodeInfo{Known: true, Addresses: parse([]string{"10.0.0.1", "192.0.2.1", "2001:db8::9"})},
			[]string{"10.0.0.1", "2001:db8::9"}},
		{"primary, the Node has one family", primary, objects.NodeInfo{Known: true, Addresses: parse([]string{"172.16.0.1"})}, []string{"172.16.0.1"}},
		{"primary, the Node's address is elsewhere", primary, objects.NodeInfo{Known: true, Addresses: parse([]string{"203.0.113.7"})}, nil},
		{"primary, no Node", primary, objects.NodeInfo{}, []string{"192.0.2.1", "2001:db8::1"}},
		{"primary and a network", append(primary, config.AddressSelector{Prefix: netip.MustParsePrefix("10.0.0.0/8")}), objects.NodeInfo{},
			[]string{"192.0.2.1", "10.0.0.1", "2001:db8::1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []netip.Addr
			for _, a := range nodePortAddresses(&config.Configuration{NodeAddresses: tt.which}, all, tt.node) {
				got = append(got, a.Netip())
			}
			if !slices.Equal(got, parse(tt.want)) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// TestProxied: every scheduler of the configuration is one of the data path's, and what
// else proxy says arrives.
func TestProxied(t *testing.T) {
	for i, name := range config.Schedulers {
		var cc compiler.Config
		proxied(&config.Proxy{Scheduler: name}, &cc)
		if cc.Scheduler.String() != string(name) {
			t.Errorf("scheduler %d %q is %v", i, name, cc.Scheduler)
		}
	}
	if len(config.Schedulers) != int(services.NumSchedulers) {
		t.Errorf("%d schedulers can be configured, there are %d", len(config.Schedulers), services.NumSchedulers)
	}
	pods := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	var cc compiler.Config
	proxied(&config.Proxy{ClusterIPs: true, ClusterCIDRs: pods, MasqueradeAll: true, StrictSourceRanges: true, RetryOther: true}, &cc)
	if !cc.ClusterIPs || !slices.Equal(cc.ClusterCIDRs, pods) || !cc.MasqueradeAll || !cc.StrictSourceRanges || !cc.RetryOther {
		t.Errorf("%+v lacks something", cc)
	}
}
