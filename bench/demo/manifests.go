package demo

import (
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// The frontends of the services.
var (
	webVIP4, webVIP6     = netip.MustParseAddrPort("203.0.113.10:80"), netip.MustParseAddrPort("[2001:db8:10::10]:80")
	webExt4, webExt6     = netip.MustParseAddrPort("198.51.100.20:80"), netip.MustParseAddrPort("[2001:db8:20::20]:80")
	echoVIP4, echoVIP6   = netip.MustParseAddrPort("203.0.113.11:7"), netip.MustParseAddrPort("[2001:db8:10::11]:7")
	localVIP4, localVIP6 = netip.MustParseAddrPort("203.0.113.12:81"), netip.MustParseAddrPort("[2001:db8:10::12]:81")
)

const (
	nodePort   = 30080
	targetPort = 8080
	nodeName   = "gateway"
)

// webVIP are both VIPs of the web service.
var webVIP = []netip.AddrPort{webVIP4, webVIP6}

// service is a Service of the demo.
func service(name string, endpoints []*topo.Host, vips ...netip.AddrPort) launch.Service {
	s := launch.Service{Namespace: "demo", Name: name, Port: int32(vips[0].Port())}
	for _, v := range vips {
		s.VIPs = append(s.VIPs, v.Addr().String())
	}
	for _, h := range endpoints {
		for _, a := range []netip.Addr{h.Addr4(), h.Addr6()} {
			s.Endpoints = append(s.Endpoints, launch.Endpoint{Addr: a, Port: targetPort, Node: h.Name})
		}
	}
	return s
}

// webService has three ways in, over two address families: a load balancer's VIP, an external IP,
// and a node port on the gateway's own addresses.
func webService(endpoints []*topo.Host) launch.Service {
	s := service("web", endpoints, webVIP...)
	s.NodePort, s.ExternalIPs = nodePort, []string{webExt4.Addr().String(), webExt6.Addr().String()}
	return s
}

// applyServices writes the manifests. The endpoints of local are on the gateway itself, as that of
// a pod in the host's network is, and on a backend, which must never be asked.
func (d *demo) applyServices() error {
	echo := service("echo", d.web, echoVIP4, echoVIP6)
	echo.UDP = true
	local := service("local", []*topo.Host{d.net.Gateway, d.web[0]}, localVIP4, localVIP6)
	local.Local = true
	return d.gw.Apply(webService(d.web), echo, local)
}

// without returns the hosts except one.
func without(hosts []*topo.Host, gone *topo.Host) []*topo.Host {
	return slices.DeleteFunc(slices.Clone(hosts), func(h *topo.Host) bool { return h == gone })
}

func names(hosts []*topo.Host) string {
	var list []string
	for _, h := range hosts {
		list = append(list, h.Name)
	}
	return strings.Join(list, " ")
}
