//go:build root

package nodetunnel

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"sluice.dev/sluice/nat/vxlan"
	"sluice.dev/sluice/test/bed/topo"
)

// TestRun: the tunnel survives the replacement of a Run by the next one and back, is corrected, and
// goes with the last Run.
func TestRun(t *testing.T) {
	space, err := topo.NewSpace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { space.Close() })
	if err := space.Run(func() error { testRun(t); return nil }); err != nil {
		t.Fatal(err)
	}
}

func testRun(t *testing.T) {
	c := &Config{Tunnel: vxlan.Tunnel{VNI: 20942, Port: 4789}, Gateways: []netip.Prefix{
		netip.MustParsePrefix("10.0.1.2/32")}}
	here, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	start := func() (end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			if err := netns.Set(here); err != nil {
				done <- err
				return
			}
			done <- Run(ctx, c, func(line string) { t.Log(line) })
		}()
		return func() {
			t.Helper()
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	until := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(4 * checkInterval); !is(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within %v: %s", 4*checkInterval, what)
			}
		}
	}
	owner := func() string { o, _ := readOwner(); return o }
	endFirst := start()
	until("a tunnel", func() bool { return owner() != "" && c.complete() })
	first := owner()
	endSecond := start()
	until("another owner", func() bool { return owner() != first && owner() != "" })
	endFirst()
	if !c.complete() {
		t.Error("the first Run removed the tunnel of the second one")
	}
	if _, err := unprotect(); err != nil {
		t.Fatal(err)
	}
	until("the firewall again", c.complete)
	other := &Config{Tunnel: c.Tunnel, Gateways: []netip.Prefix{netip.MustParsePrefix("10.0.1.9/32")}}
	if _, err := Apply(other); err != nil {
		t.Fatal(err)
	}
	until("its gateways again", c.complete)
	// An update that is taken back: the first of two Runs stays.
	second := owner()
	endThird := start()
	until("a third owner", func() bool { return owner() != second && owner() != "" })
	before, err := devices[0].find()
	if err != nil || before == nil {
		t.Fatal(before, err)
	}
	endThird()
	after, err := devices[0].find()
	if err != nil || after == nil || after.Attrs().Index != before.Attrs().Index || owner() != second || !c.complete() {
		t.Errorf("after the third Run, which the second one outlives: %v, owner %q, %v", after, owner(), err)
	}
	endSecond()
	if s, err := readFirewall(c.Tunnel); err != nil || s.there || owner() != "" {
		t.Errorf("after the last Run: firewall %v, owner %q, %v", s.there, owner(), err)
	}
}

// TestRunFails: a Run that cannot make the tunnel ends with the reason. It leaves the tunnel of
// another Run, which has another port, as it is.
func TestRunFails(t *testing.T) {
	space, err := topo.NewSpace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { space.Close() })
	err = space.Run(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "overlay"
		overlay := &netlink.Vxlan{LinkAttrs: attrs, FlowBased: true, Port: 4789}
		if err := errors.Join(netlink.LinkAdd(overlay), netlink.LinkSetUp(overlay)); err != nil {
			return err
		}
		c := &Config{Tunnel: vxlan.Tunnel{VNI: 20942, Port: 4789}}
		first := Run(t.Context(), c, func(line string) { t.Error(line) })
		other := &Config{Tunnel: vxlan.Tunnel{VNI: 20942, Port: 4790}, Gateways: []netip.Prefix{
			netip.MustParsePrefix("10.0.1.2/32")}}
		if _, err := Apply(other); err != nil {
			return err
		}
		before := indexes(t)
		if err := Run(t.Context(), c, func(line string) { t.Error(line) }); errorText(err) != errorText(first) {
			t.Errorf("%v, at first %v", err, first)
		}
		if after := indexes(t); !slices.Equal(after, before) || !other.complete() {
			t.Errorf("devices %v, before %v; complete %v", after, before, other.complete())
		}
		return first
	})
	if err == nil || !strings.Contains(err.Error(), "UDP port 4789 is in use") {
		t.Errorf("%v", err)
	}
}

// indexes returns the interface indexes of all devices.
func indexes(t *testing.T) (list []int) {
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		list = append(list, l.Attrs().Index)
	}
	return list
}
