//go:build root

package nodetunnel

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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
			netip.MustParsePrefix("10.0.2.4/30"), netip.MustParsePrefix("255.255.255.255/32"),
			netip.MustParsePrefix("2001:db8::1/128")}}
	failed := func() (checks []string) {
		for _, f := range Check(t.Context(), c) {
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
	for name, value := range map[string]string{"ipv4/ip_forward": "1", "ipv4/conf/default/forwarding": "0",
		"ipv6/conf/default/disable_ipv6": "1"} {
		if err := write(name, value); err != nil {
			t.Fatal(err)
		}
	}
	apply(3)
	want("applied")
	for _, d := range devices {
		if got := read("ipv6/conf/" + d.name + "/disable_ipv6"); got != "0" {
			t.Errorf("%s: disable_ipv6 is %s", d.name, got)
		}
	}
	apply(1) // the list of gateways is replaced, the devices stay
	checkRuleset(t)
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
	nft := func(script string) func() error {
		return func() error {
			c := exec.Command("nft", "-f", "-")
			c.Stdin = strings.NewReader(script)
			if out, err := c.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}
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
		{"does not forward", func() error { return write("ipv4/conf/"+devices[0].name+"/forwarding", "0") }, "device"},
		{"no IPv6", func() error { return write("ipv6/conf/"+devices[1].name+"/disable_ipv6", "1") }, "device"},
		{"no gateways", nft("flush set inet sluice_node gateways4"), "firewall"},
		{"one gateway less", nft("delete element inet sluice_node gateways4 { 10.0.1.2 }"), "firewall"},
		{"one gateway more", nft("add element inet sluice_node gateways6 { 2001:db8::7 }"), "firewall"},
		{"other gateways", func() error {
			_, err := Apply(&Config{Tunnel: c.Tunnel, Gateways: []netip.Prefix{netip.MustParsePrefix("10.0.1.9/32")}})
			return err
		}, "firewall"},
		{"no rules", nft("flush chain inet sluice_node forward"), "firewall"},
		{"a rule that accepts", nft("flush chain inet sluice_node forward\n" +
			strings.Repeat("add rule inet sluice_node forward counter accept\n", 4)), "firewall"},
		{"a verdict of a rule", nft("flush chain inet sluice_node prerouting\n" +
			"add rule inet sluice_node prerouting meta l4proto udp ct state established\n" +
			"add rule inet sluice_node prerouting udp dport 4789 @th,96,24 0x51ce ip saddr != @gateways4 " +
			"counter accept\n" +
			"add rule inet sluice_node prerouting udp dport 4789 @th,96,24 0x51ce ip6 saddr != @gateways6 " +
			"counter drop"),
			"firewall"},
		{"a policy", nft("chain inet sluice_node forward { policy drop; }"), "firewall"},
		{"dormant", nft("table inet sluice_node { flags dormant; }"), "firewall"},
		{"no firewall", func() error {
			return exec.Command("nft", "delete", "table", "inet", tableName).Run()
		}, "firewall"},
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
		if got := read("ipv4/conf/" + devices[0].name + "/forwarding"); got != "1" {
			t.Errorf("%s: forwarding is %s", tt.name, got)
		}
		want(tt.name + ", applied")
	}
	for _, lines := range []int{3, 0} {
		if removed, err := Remove(); err != nil || len(removed) != lines {
			t.Errorf("removed %q, %v; want %d lines", removed, err, lines)
		}
	}
	want("removed", "device", "firewall")
	testOtherOverlay(t, c)
}

// checkRuleset compares the table with the ruleset that its description has.
func checkRuleset(t *testing.T) {
	t.Helper()
	text, err := exec.Command("nft", "--stateless", "list", "table", "inet", tableName).CombinedOutput()
	want := `table inet sluice_node {
	set gateways4 {
		type ipv4_addr
		flags interval
		auto-merge
		elements = { 10.0.1.2, 10.0.2.0/28,
			     255.255.255.255 }
	}

	set gateways6 {
		type ipv6_addr
		flags interval
		auto-merge
		elements = { 2001:db8::1 }
	}

	chain prerouting {
		type filter hook prerouting priority raw; policy accept;
		meta l4proto udp ct state established
		udp dport 4789 @th,96,24 0x51ce ip saddr != @gateways4 counter drop
		udp dport 4789 @th,96,24 0x51ce ip6 saddr != @gateways6 counter drop
	}

	chain forward {
		type filter hook forward priority filter; policy accept;
		iifname "sluice-dsr" ct state invalid,untracked counter drop
		iifname "sluice-dsr" ct status ! dnat counter drop
		iifname "sluice-dsr6" ct state invalid,untracked counter drop
		iifname "sluice-dsr6" ct status ! dnat counter drop
	}
}
`
	if diff := gocmp.Diff(want, string(text)); diff != "" || err != nil {
		t.Errorf("%v, the firewall, -want +got:\n%s", err, diff)
	}
}

// testOtherOverlay: a VXLAN device of a network plugin has the UDP port. Devices share a port only
// if their options are the same (drivers/net/vxlan, vxlan_find_sock).
func testOtherOverlay(t *testing.T, c *Config) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "overlay"
	overlay := &netlink.Vxlan{LinkAttrs: attrs, FlowBased: true, Port: int(c.Port)}
	if err := errors.Join(netlink.LinkAdd(overlay), netlink.LinkSetUp(overlay)); err != nil {
		t.Fatal(err)
	}
	if _, err := Apply(c); err == nil || !strings.Contains(err.Error(), "device sluice-dsr: bringing it up: UDP port "+
		"4789 is in use") || !strings.Contains(err.Error(), "use another --port") {
		t.Errorf("%v", err)
	}
	if err := netlink.LinkDel(overlay); err != nil {
		t.Fatal(err)
	}
	if changed, err := Apply(c); err != nil || len(changed) != 3 {
		t.Errorf("changed %q, %v", changed, err)
	}
	if _, err := Remove(); err != nil {
		t.Error(err)
	}
}

// TestReadOnlySysctls: where /proc/sys is read-only, as in a container, a sysctl that has its value
// already is no error, and another one names the directory to mount.
func TestReadOnlySysctls(t *testing.T) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread, whose mounts are its own, ends with the goroutine
		done <- errors.Join(unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_NEWNET),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""),
			unix.Mount("", "/proc/sys", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""),
			write("ipv4/ip_forward", "0"), write("ipv4/ip_forward", "1"))
	}()
	const want = "setting net.ipv4.ip_forward: open /proc/sys/net/ipv4/ip_forward: read-only file system, as in a " +
		"container: mount the host's /proc/sys/net writable at /host/proc/sys/net"
	if err := <-done; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
