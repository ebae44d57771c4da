package nodeconfig

import (
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
)

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
	proxied(&config.Proxy{ClusterIPs: true, ClusterCIDRs: pods, MasqueradeAll: true, StrictSourceRanges: true}, &cc)
	if !cc.ClusterIPs || !slices.Equal(cc.ClusterCIDRs, pods) || !cc.MasqueradeAll || !cc.StrictSourceRanges ||
		!cc.RetryOther {
		t.Errorf("%+v lacks something", cc)
	}
}

// TestTunnelPort: the compiler knows the tunnel's port only if there is a tunnel.
func TestTunnelPort(t *testing.T) {
	for vni, want := range map[int]uint16{0: 0, 20942: 4790} {
		c := config.Default()
		c.DirectReturn = config.DirectReturn{VNI: vni, Port: 4790}
		if cc := Compiler(c, "gw", [2]uint64{}, nil, nil, objects.NodeInfo{}); cc.TunnelPort != want {
			t.Errorf("VNI %d: port %d, want %d", vni, cc.TunnelPort, want)
		}
	}
}
