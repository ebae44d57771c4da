package nodetunnel

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/gateway/doctor"
	"sluice.dev/sluice/nat/vxlan"
)

// kubeProxy is the URL at which kube-proxy reports that it programs the node
// (KubeProxyConfiguration, healthzBindAddress: port 10256 of all addresses by default).
const kubeProxy = "http://127.0.0.1:10256/healthz"

// Check returns findings about the node. It changes nothing. Without c.Gateways it does not compare
// gateways.
func Check(ctx context.Context, c *Config) (list []doctor.Finding) {
	for _, d := range devices {
		if d.v6() && !hasIPv6() {
			continue
		}
		list = append(list, d.check(c.Tunnel)...)
	}
	list = append(list, forwarding()...)
	list = append(list, firewall(c)...)
	return append(list, proxy(ctx, kubeProxy))
}

// remedy returns the command that makes the missing parts.
func remedy(t vxlan.Tunnel) string {
	return fmt.Sprintf("run `sluice node apply --vni %d --port %d --gateway ADDRESS`, with the address of each gateway",
		t.VNI, t.Port)
}

func (d *device) check(t vxlan.Tunnel) []doctor.Finding {
	f := doctor.Finding{Check: "device", Subject: d.name, Level: doctor.Fail, Do: remedy(t)}
	link, err := d.find()
	switch {
	case err != nil:
		f.Found = err.Error()
		return []doctor.Finding{f}
	case link == nil:
		f.Found = "is missing"
		return []doctor.Finding{f}
	}
	switch wrong := d.differs(link, t); {
	case wrong != "":
		f.Found = wrong
	case link.Attrs().Flags&net.FlagUp == 0:
		f.Found = "is down"
	case d.otherSysctl() != "":
		f.Found = d.otherSysctl()
	default:
		f.Level, f.Do, f.Found = doctor.OK, "", fmt.Sprintf("VXLAN %d, UDP port %d, %d packets received", t.VNI, t.Port,
			link.Attrs().Statistics.RxPackets)
	}
	filter := doctor.Finding{Check: "rp_filter", Subject: d.name, Level: doctor.OK}
	all, own := read("ipv4/conf/all/rp_filter"), read("ipv4/conf/"+d.name+"/rp_filter")
	filter.Found = max(all, own)
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
	switch {
	case filter.Found == "2" && (err != nil || len(addrs) == 0):
		filter.Level, filter.Do = doctor.Fail, remedy(t)
		filter.Found = "2 (loose), and the device has no IPv4 address: the kernel drops IPv4 packets of clients"
	case filter.Found == "1":
		filter.Level, filter.Do = doctor.Fail, remedy(t)
		filter.Found = "1 (strict): the kernel drops packets of clients, whose route is another device"
	}
	return []doctor.Finding{f, filter}
}

// otherSysctl describes the first sysctl that Apply would change; "" without one. rp_filter has a
// finding of its own.
func (d *device) otherSysctl() string {
	for _, v := range d.sysctls() {
		if got := read(v[0]); got != v[1] && !strings.HasSuffix(v[0], "/rp_filter") {
			return fmt.Sprintf("%s is %s, not %s", dotted(v[0]), got, v[1])
		}
	}
	return ""
}

// forwarding checks whether the node forwards packets to pods.
func forwarding() (list []doctor.Finding) {
	names := []string{"ipv4/ip_forward"}
	if hasIPv6() {
		names = append(names, "ipv6/conf/all/forwarding")
	}
	for _, name := range names {
		f := doctor.Finding{Check: "forwarding", Subject: dotted(name), Level: doctor.OK,
			Found: read(name)}
		if f.Found != "1" {
			f.Level, f.Do = doctor.Warn, "set it to 1: otherwise the kernel forwards no packet of the family to pods"
		}
		list = append(list, f)
	}
	return list
}

// firewall checks that the table is for this tunnel and admits the gateways, and reports the
// packets that it dropped.
func firewall(c *Config) []doctor.Finding {
	f := doctor.Finding{Check: "firewall", Subject: "inet " + tableName, Level: doctor.Fail,
		Do: remedy(c.Tunnel)}
	s, err := readFirewall(c.Tunnel)
	want := s.gateways
	if err == nil && len(c.Gateways) > 0 {
		want, err = setOf(c.Gateways)
	}
	switch {
	case err != nil:
		f.Found, f.Do = err.Error(), "run it as root, or with CAP_NET_ADMIN"
	case !s.there:
		f.Found = "is missing: every host can send packets with any client's address into the tunnel"
	case !s.ours:
		f.Found = "is for another tunnel, or of another version"
	case len(s.gateways.Ranges()) == 0:
		f.Found = "has no gateway: it drops all packets of the tunnel"
	case !s.gateways.Equal(want):
		f.Found = fmt.Sprintf("admits %s, not %s", prefixes(s.gateways.Prefixes()), prefixes(want.Prefixes()))
	default:
		f.Level, f.Do = doctor.OK, ""
		f.Found = fmt.Sprintf("admits %s; %d packets from others dropped", prefixes(s.gateways.Prefixes()), s.dropped)
		if s.dropped > 0 {
			f.Level, f.Do = doctor.Warn, "if a gateway sent them, add its address with --gateway"
		}
	}
	if s.returned == 0 {
		return []doctor.Finding{f}
	}
	return []doctor.Finding{f, {Check: "translation", Subject: f.Subject, Level: doctor.Warn, Do: translate,
		Found: fmt.Sprintf("dropped %d packets that kube-proxy did not translate: the node would have sent them back",
			s.returned)}}
}

// translate is the remedy for a node that does not translate.
const translate = "kube-proxy, or its replacement, must translate the Services' addresses on this node"

// proxy checks whether kube-proxy programs this node.
func proxy(ctx context.Context, url string) doctor.Finding {
	f := doctor.Finding{Check: "kube-proxy", Subject: url, Level: doctor.Warn, Do: translate}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		f.Found = err.Error()
		return f
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		f.Found = "does not answer: " + err.Error()
		return f
	}
	defer answer.Body.Close()
	if f.Found = answer.Status; answer.StatusCode == http.StatusOK {
		f.Level, f.Do = doctor.OK, ""
	}
	return f
}
