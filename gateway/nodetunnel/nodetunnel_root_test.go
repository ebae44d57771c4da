//go:build root

package nodetunnel

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/gateway/doctor"
	"sluice.dev/sluice/nat/vxlan"
	"sluice.dev/sluice/test/bed/topo"
)

// TestNode applies, breaks, checks and removes the node's side in a namespace of its own.
func TestNode(t *testing.T) {
	space, err := topo.NewSpace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { space.Close() })
	if err := space.Run(func() error { testNode(t); return nil }); err != nil {
		t.Fatal(err)
	}
}

func testNode(t *testing.T) {
	c := &Config{Tunnel: vxlan.Tunnel{VNI: 20942, Port: 4789},
		Gateways: []netip.Prefix{netip.MustParsePrefix("10.0.1.2/32"), netip.MustParsePrefix("10.0.2.3/28"),
			netip.MustParsePrefix("2001:db8::1/128")}}
	failed := func() (checks []string) {
		for _, f := range Check(t.Context(), c.Tunnel) {
			if f.Level == doctor.Fail && !slices.Contains(checks, f.Check) {
				checks = append(checks, f.Check)
			}
		}
		return checks
	}
	want := func(when string, checks ...string) {
		t.Helper()
		if got := failed(); !slices.Equal(got, checks) {
			t.Errorf("%s: failed are %q, want %q", when, got, checks)
		}
	}
	apply := func(lines int) {
		t.Helper()
		if changed, err := Apply(c); err != nil || len(changed) != lines {
			t.Errorf("changed %q, %v; want %d lines", changed, err, lines)
		}
	}
	want("before", "device", "firewall")
	apply(3)
	want("applied")
	apply(1) // the list of gateways is replaced, the devices stay
	if text, _ := listTable(); !strings.Contains(text, "10.0.1.2, 10.0.2.0/28") ||
		!strings.Contains(text, "2001:db8::1") {
		t.Errorf("the firewall is\n%s", text)
	}
	c.VNI++
	want("another VNI", "device", "firewall")
	apply(3)
	want("applied again")

	link := func() netlink.Link {
		l, err := devices[0].find()
		if err != nil || l == nil {
			t.Fatal(l, err)
		}
		return l
	}
	for _, tt := range []struct {
		name    string
		breakIt func() error
		check   string
	}{
		{"MAC", func() error { return netlink.LinkSetHardwareAddr(link(), []byte{2, 0, 0, 0, 0, 1}) }, "device"},
		{"down", func() error { return netlink.LinkSetDown(link()) }, "device"},
		{"no address", func() error { return netlink.AddrDel(link(), dummy) }, "rp_filter"},
		{"strict", func() error { return write("ipv4/conf/"+devices[0].name+"/rp_filter", "1") }, "rp_filter"},
		{"no gateways", func() error {
			return exec.Command("nft", "flush", "set", "inet", table, "gateways4").Run()
		}, ""},
		{"no firewall", func() error { return nft("delete table inet " + table + "\n") }, "firewall"},
	} {
		if err := tt.breakIt(); err != nil {
			t.Fatal(tt.name, err)
		}
		if tt.check != "" {
			want(tt.name, tt.check)
		}
		if _, err := Apply(c); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		want(tt.name + ", applied")
	}
	for _, lines := range []int{3, 0} {
		if removed, err := Remove(); err != nil || len(removed) != lines {
			t.Errorf("removed %q, %v; want %d lines", removed, err, lines)
		}
	}
	want("removed", "device", "firewall")
}
