//go:build root

package e2e

import (
	"context"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

const kubeletPort = 10250

// hostPorts is a lab with a server at the kubelet's port of the gateway and another at one that is
// for clients, and a Service for each: slices that name addresses of the gateway.
func hostPorts(t *testing.T, options string) *lab {
	t.Helper()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 1}, small: true, options: options})
	g := l.Gateway
	kubelet, err := g.ServeOn("kubelet", kubeletPort, g.Addr4(), g.Addr6())
	if err != nil {
		t.Fatal(err)
	}
	open, err := g.ServeOn("open", localBackendPort, g.Addr4(), g.Addr6())
	if err != nil {
		t.Fatal(err)
	}
	l.servers = append(l.servers, kubelet, open)
	at := func(port int32) []launch.Endpoint {
		return []launch.Endpoint{{Addr: g.Addr4(), Port: port, Node: "another"}, {Addr: g.Addr6(), Port: port}}
	}
	l.apply(launch.Service{Name: "kubelet", Port: kubeletPort, VIPs: []string{external4, keepVIP6},
		Endpoints: at(kubeletPort)},
		launch.Service{Name: "open", Port: webPort, VIPs: []string{external4, keepVIP6},
			Endpoints: at(localBackendPort)})
	l.applied()
	return l
}

// reaches reports whether a client outside reaches a port at the VIPs of hostPorts, in each family.
func (l *lab) reaches(port uint16) (reached [2]bool) {
	l.t.Helper()
	for i, vip := range []string{external4, keepVIP6} {
		to := netip.AddrPortFrom(netip.MustParseAddr(vip), port)
		reached[i] = firstLine(l.t, l.Clients[0], to, "GET / HTTP/1.0\r\n\r\n") != ""
	}
	return reached
}

func (l *lab) expectReached(when string, kubelet, open bool) {
	l.t.Helper()
	if got := l.reaches(kubeletPort); got != [2]bool{kubelet, kubelet} {
		l.t.Errorf("%s: the kubelet's port is reached: %v, want %v", when, got, kubelet)
	}
	if got := l.reaches(webPort); got != [2]bool{open, open} {
		l.t.Errorf("%s: the port that is for clients is reached: %v, want %v", when, got, open)
	}
}

// TestHostPortsAreDenied: an EndpointSlice that names the gateway's kubelet opens it to nobody, and
// is reported; a port that is not denied is served as the endpoint of a pod in the host's network.
func TestHostPortsAreDenied(t *testing.T) {
	t.Parallel()
	l := hostPorts(t, "")
	l.expectReached("by default", false, true)
	st, err := l.gate.Client.Status(l.ctx, false)
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, p := range st.Problems {
		if strings.HasPrefix(p.Object, "EndpointSlice") && strings.Contains(p.Message, "10250/TCP") &&
			strings.Contains(p.Message, "proxy.deniedHostPorts") {
			named++
		}
	}
	if named != 2 {
		t.Errorf("%d problems name the endpoint, want one of each family: %+v", named, st.Problems)
	}
}

// TestHostFirewall: with no port denied the kubelet is reached by the host link, and the rules of
// docs/operations.md, as they are written there, keep clients away from it and from nothing else:
// the port that they open is served, and the gateway's own connections go on.
func TestHostFirewall(t *testing.T) {
	t.Parallel()
	l := hostPorts(t, "proxy: {deniedHostPorts: []}\n")
	l.expectReached("without rules", true, true)
	// A port of snat.ports: its packets come by the host link.
	own := dialFrom(t, l.Gateway, netip.AddrPortFrom(l.Gateway.Addr4(), 20000),
		echoes(t, l.Clients[0], netip.AddrPortFrom(l.Clients[0].Addr4(), 6443)))
	nft(t, l.Gateway, rulesOfTheManual(t))
	l.expectReached("with the rules of docs/operations.md", false, true)
	echo(t, own, "with the rules")
	nft(t, l.Gateway, "delete table inet sluice-host\n")
	l.expectReached("after they are gone", true, true)
}

// rulesOfTheManual is the ruleset in docs/operations.md.
func rulesOfTheManual(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	rules := regexp.MustCompile("(?s)```nft\n(.*?)```").FindSubmatch(text)
	if rules == nil {
		t.Fatal("docs/operations.md has no ruleset")
	}
	return string(rules[1])
}

func nft(t *testing.T, h *topo.Host, rules string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := h.NFT(ctx, rules); err != nil {
		t.Fatal(err)
	}
}
