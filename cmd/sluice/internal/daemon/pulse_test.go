package daemon

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/pulse"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/internal/unixsocket"
	"sluice.dev/sluice/nat/header"
)

// A VIP is listed once, with each of its Services, whose ports together decide whether it is
// usable. Node ports and external IPs are none.
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
	service := func(name string, local, usable bool) pulse.Service {
		return pulse.Service{Namespace: "default", Name: name, Local: local, Usable: usable}
	}
	want := []pulse.VIP{
		{Address: netip.MustParseAddr("192.0.2.1"), Services: []pulse.Service{service("mail", true, false)}},
		{Address: netip.MustParseAddr("192.0.2.9"), Services: []pulse.Service{service("mail", false, false),
			service("web", true, true)}},
		{Address: netip.MustParseAddr("2001:db8::9"), Services: []pulse.Service{service("web", false, true)}},
	}
	if got := vipsOf(b.Build(), nil); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	// A Service is impaired at one of its VIPs, and another Service of the VIP is not.
	want[1].Services[1].Impaired = "no route"
	impaired := &found{impaired: map[vipService]string{{want[1].Address, "default", "web"}: "no route"}}
	if got := vipsOf(b.Build(), impaired); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// The pulse is on its own socket, whatever the process before has given. A socket at the path of a
// build before is served as well where it was given, and removed where nobody is behind it.
func TestPulseSockets(t *testing.T) {
	t.Parallel()
	const old, own = "pulse.sock", "pulse/pulse.sock"
	for _, tt := range []struct {
		name, given string
		stale       string
		answer      []string
	}{
		{"a first process", "", "", []string{own}},
		{"after a build before that died", "", old, []string{own}},
		{"after this version", own, "", []string{own}},
		{"after a build before", old, "", []string{old, own}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := config.Default()
			c.StateDir = shortDirectory(t)
			c.Interfaces = []config.Interface{{Name: "eth7"}}
			d := &Daemon{config: c, fixed: c, log: slog.New(slog.DiscardHandler)}
			listen := func(name string) *net.UnixListener {
				path := filepath.Join(c.StateDir, name)
				must(t, os.MkdirAll(filepath.Dir(path), 0o700))
				l, err := unixsocket.Listen(path)
				must(t, err)
				return l.(*net.UnixListener)
			}
			if tt.stale != "" {
				l := listen(tt.stale)
				l.SetUnlinkOnClose(false)
				l.Close()
			}
			if tt.given != "" {
				d.pulses.listener = listen(tt.given)
			}
			ctx, cancel := context.WithCancel(t.Context())
			must(t, d.servePulse(ctx))
			if at := d.pulses.listener.Addr().String(); at != c.PulseSocket() {
				t.Errorf("the next process is given the socket at %s, want %s", at, c.PulseSocket())
			}
			for _, name := range []string{old, own} {
				said, err := firstLine(filepath.Join(c.StateDir, name))
				if want := slices.Contains(tt.answer, name); want != (err == nil) {
					t.Errorf("%s says %q, %v; want an answer: %v", name, said, err, want)
				} else if want && !strings.Contains(said, `"interfaces":["eth7"]`) {
					t.Errorf("%s says %q, and not which interfaces it serves", name, said)
				}
			}
			cancel()
			d.servers.group.Wait()
			d.leaving = "the node is no gateway any more"
			d.removePulseDirectory()
			if left, err := os.ReadDir(c.StateDir); err != nil || len(left) > 0 {
				t.Errorf("left in stateDir: %v, %v", left, err)
			}
		})
	}
}

// shortDirectory is a temporary one, in whose path that of a socket has room.
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
