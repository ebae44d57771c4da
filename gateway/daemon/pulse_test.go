package daemon

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// A VIP is listed once, with each of its Services. A Service is usable if one of its ports is. Node
// ports and external IPs are not listed.
func TestVIPsOf(t *testing.T) {
	t.Parallel()
	b := services.NewBuilder(nil)
	some := &services.EndpointSet{Backends: []services.BackendRef{services.MakeBackendRef(0, 1)}}
	none := &services.EndpointSet{Empty: services.EmptyDrop}
	add := func(id services.ServiceID, name, addr string, port uint16, kind services.FrontendKind, local bool,
		set *services.EndpointSet,
	) {
		s := &services.Service{ID: id, Namespace: "default", Name: name, Proto: header.ProtoTCP, Port: port,
			LocalExternal: local}
		s.Direct = name == "direct"
		b.SetService(s)
		b.SetFrontend(&services.Frontend{Kind: kind, Service: s, Outside: services.Rule{Set: set},
			Key: services.FrontendKey{Addr: header.AddrFrom(netip.MustParseAddr(addr)), Port: port,
				Proto: header.ProtoTCP}})
	}
	add(1, "web", "192.0.2.9", 80, services.LoadBalancer, true, none)
	add(2, "web", "192.0.2.9", 443, services.LoadBalancer, true, some)
	add(3, "mail", "192.0.2.9", 25, services.LoadBalancer, false, none)
	add(4, "mail", "192.0.2.1", 25, services.LoadBalancer, true, none)
	add(5, "web", "192.0.2.7", 80, services.ExternalIP, false, some)
	add(6, "web", "2001:db8::9", 80, services.LoadBalancer, false, some)
	add(7, "direct", "192.0.2.11", 80, services.LoadBalancer, true, &services.EndpointSet{}) // no endpoint anywhere
	add(8, "direct", "192.0.2.12", 80, services.LoadBalancer, true, &services.EndpointSet{})
	add(9, "direct", "192.0.2.12", 81, services.LoadBalancer, true, none) // endpoints on this node
	service := func(name string, local, usable bool) pulse.Service {
		return pulse.Service{Namespace: "default", Name: name, Local: local, Usable: usable}
	}
	want := []pulse.VIP{
		{Address: netip.MustParseAddr("192.0.2.1"), Services: []pulse.Service{service("mail", true, false)}},
		{Address: netip.MustParseAddr("192.0.2.9"), Services: []pulse.Service{service("mail", false, false),
			service("web", true, true)}},
		{Address: netip.MustParseAddr("192.0.2.11"), Services: []pulse.Service{service("direct", false, false)}},
		{Address: netip.MustParseAddr("192.0.2.12"), Services: []pulse.Service{service("direct", true, false)}},
		{Address: netip.MustParseAddr("2001:db8::9"), Services: []pulse.Service{service("web", false, true)}},
	}
	if got := vipsOf(b.Build(), nil); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	// A Service is impaired at one of its VIPs, and another Service of the VIP is not.
	want[1].Services[1].Impaired = "no route"
	impaired := &reached{impaired: map[vipService]string{{want[1].Address, "default", "web"}: "no route"}}
	if got := vipsOf(b.Build(), impaired); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// The pulse answers on its socket, whether this process makes it or the predecessor hands it over.
func TestPulseSocket(t *testing.T) {
	t.Parallel()
	for _, given := range []bool{false, true} {
		t.Run(fmt.Sprintf("given=%t", given), func(t *testing.T) {
			c := config.Default()
			c.StateDir = shortDirectory(t)
			c.Interfaces = []config.Interface{{Name: "eth7"}}
			d := &Daemon{settings: &settings{inForce: c, atStart: c}, log: slog.New(slog.DiscardHandler)}
			if given {
				l, err := listenPulse(c.PulseSocket())
				must(t, err)
				d.pulse.listener = l
			}
			ctx, cancel := context.WithCancel(t.Context())
			must(t, d.pulse.serve(ctx, c.PulseSocket(), &d.servers.group, d.log, d.pulseInput))
			if at := d.pulse.listener.Addr().String(); at != c.PulseSocket() {
				t.Errorf("the next process is given the socket at %s, want %s", at, c.PulseSocket())
			}
			if line, err := firstLine(c.PulseSocket()); err != nil ||
				!strings.Contains(line, `"interfaces":["eth7"]`) {
				t.Errorf("the socket answers %q, %v, want which interfaces it serves", line, err)
			}
			cancel()
			d.servers.group.Wait()
			removePulseDirectory(c, true)
			if left, err := os.ReadDir(c.StateDir); err != nil || len(left) > 0 {
				t.Errorf("left in stateDir: %v, %v", left, err)
			}
		})
	}
}

// shortDirectory returns a temporary directory whose path is short enough for a socket's.
func shortDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice-pulse-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func firstLine(socket string) (string, error) {
	c, err := net.DialTimeout("unix", socket, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	return bufio.NewReader(c).ReadString('\n')
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
