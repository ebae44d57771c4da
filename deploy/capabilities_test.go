//go:build root

package deploy

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

const (
	vip4, vip6  = "203.0.113.10", "2001:db8:f::10"
	webPort     = 80
	backendPort = 8080
	requests    = 200
)

// confined is a network whose gateway's daemon is confined as its pod is.
type confined struct {
	net   *topo.Net
	gate  *launch.Gateway
	bpffs string
}

func newConfined(t *testing.T, daemon string, capabilities []string) *confined {
	t.Helper()
	return newConfinedWith(t, daemon, capabilities, func(*topo.Net) string { return "" })
}

// newConfinedWith adds options to the configuration, which may depend on the network.
func newConfinedWith(t *testing.T, daemon string, capabilities []string, options func(*topo.Net) string) *confined {
	t.Helper()
	n, err := topo.New(topo.Config{Backends: 2, Queues: 2})
	if err != nil {
		t.Fatal(err)
	}
	c := &confined{net: n}
	t.Cleanup(func() { c.close(t) })
	if err := n.Gateway.SetSysctl("net.ipv4.ip_local_port_range", "32768 60999"); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.gate, err = launch.New(launch.Config{
		Sluice: self, Host: n.Gateway, Options: options(n),
		Env: []string{daemonVariable + "=" + daemon, capabilitiesVariable + "=" + strings.Join(capabilities, ","),
			rootVariable + "=" + t.TempDir()},
	})
	if err != nil {
		t.Fatal(err)
	}
	// The node has mounted the BPF file system: a pod may not mount it.
	bpffs := filepath.Join(filepath.Dir(c.gate.ConfigFile()), "bpf")
	if err := os.Mkdir(bpffs, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bpf", bpffs, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	c.bpffs = bpffs
	return c
}

func (c *confined) close(t *testing.T) {
	if c.gate != nil {
		if err := c.gate.Stop(); err != nil {
			t.Errorf("the daemon's end: %v\n%s", err, c.gate.Log())
		}
	}
	if c.bpffs != "" {
		if err := unix.Unmount(c.bpffs, 0); err != nil {
			t.Error(err)
		}
		if err := os.Remove(c.bpffs); err != nil {
			t.Error(err)
		}
	}
	if c.gate != nil {
		if left, err := c.gate.Leftovers(); err != nil || len(left) > 0 {
			t.Errorf("the daemon left behind: %v %v", left, err)
		}
		if err := c.gate.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := c.net.Close(); err != nil {
		t.Error(err)
	}
}

// web creates a Service with VIPs of both families and an endpoint on every backend.
func (c *confined) web(t *testing.T) {
	t.Helper()
	s := launch.Service{Name: "web", Port: webPort, VIPs: []string{vip4, vip6}}
	for _, h := range c.net.Backends {
		if _, err := h.Serve(backendPort); err != nil {
			t.Fatal(err)
		}
		for _, a := range []netip.Addr{h.Addr4(), h.Addr6()} {
			s.Endpoints = append(s.Endpoints, launch.Endpoint{Addr: a, Port: backendPort, Node: h.Name})
		}
	}
	if err := c.gate.Apply(s); err != nil {
		t.Fatal(err)
	}
}

// ask sends requests to both VIPs; all must be answered.
func (c *confined) ask(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, vip := range []string{vip4, vip6} {
		r, err := c.net.Clients[0].HTTP(ctx, topo.HTTPLoad{
			Targets: []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(vip), webPort)}, Requests: requests,
			Concurrency: 4,
		})
		if err != nil {
			t.Fatal(err)
		}
		if r.Failed() > 0 || r.Requests != requests {
			t.Errorf("%s: %v", vip, r)
		}
	}
}

func buildDaemon(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces and BPF")
	}
	path, err := launch.Build(t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// The privileges in the manifests suffice: for traffic, a crash, a start after the crash, traffic,
// and an end that leaves nothing.
func TestConfinedDaemonForwards(t *testing.T) {
	o := readManifests(t)
	c := newConfined(t, buildDaemon(t), capabilities(t, &o))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c.web(t)
	if err := c.gate.Start(ctx); err != nil {
		t.Fatalf("%v\n%s", err, c.gate.Log())
	}
	c.ask(ctx, t)
	if err := c.gate.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.gate.Start(ctx); err != nil {
		t.Fatalf("after a crash: %v\n%s", err, c.gate.Log())
	}
	c.ask(ctx, t)
	if !strings.Contains(c.gate.Log(), "flow table taken over") {
		t.Errorf("the flow table was not taken over:\n%s", c.gate.Log())
	}
	if _, err := c.gate.Laws(ctx); err != nil {
		t.Error(err)
	}
}

// Each capability of the pod is needed, and without it the daemon names the missing one, except
// SYS_NICE, without which workers are scheduled like other threads.
func TestEachCapabilityIsNeeded(t *testing.T) {
	o := readManifests(t)
	daemon := buildDaemon(t)
	all := capabilities(t, &o)
	for _, without := range all {
		t.Run(without, func(t *testing.T) {
			c := newConfined(t, daemon, slices.DeleteFunc(slices.Clone(all),
				func(name string) bool { return name == without }))
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			err := c.gate.Start(ctx)
			if without == "SYS_NICE" {
				if err != nil {
					t.Errorf("%v\n%s", err, c.gate.Log())
				}
				return
			}
			if err == nil {
				t.Fatalf("the daemon runs without %s", without)
			}
			if want := "CAP_" + without; !strings.Contains(c.gate.Log(), want) {
				t.Errorf("the log does not name %s:\n%s", want, c.gate.Log())
			}
		})
	}
}
