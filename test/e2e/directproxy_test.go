//go:build root

package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/cluster/clustertest"
	"sluice.dev/sluice/test/bed/topo"
)

// TestDirectReturnByKubeProxy: kube-proxy translates what comes out of the tunnel to pods that have
// namespaces of their own. They see the clients' addresses, no reply passes the gateway, and an
// endpoint or a node that goes away breaks no connection of the nodes that stay.
func TestDirectReturnByKubeProxy(t *testing.T) {
	clustertest.Need(t)
	t.Parallel()
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) { testDirectReturnByKubeProxy(t, mode) })
	}
}

// kubeProxyLab is a lab with an API server. Backends are nodes with kube-proxy and a pod each.
type kubeProxyLab struct {
	*lab
	cluster *cluster.Cluster
	mode    string
	proxies []*cluster.Proxy
}

func testDirectReturnByKubeProxy(t *testing.T, mode string) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	p := &kubeProxyLab{mode: mode}
	p.lab = newLab(t, labConfig{
		Config: topo.Config{OneArmed: true, Backends: directNodes, Queues: 2}, small: true,
		options: fmt.Sprintf("directReturn: {vni: %d}\nkubernetes: {enabled: true, kubeconfig: %s}\n", directVNI,
			kubeconfig),
		prepare: func(l *lab) { p.prepare(l, kubeconfig) },
	})
	p.countReplies()
	p.applied()
	c := p.Clients[0]
	tcp := []netip.AddrPort{at(keepVIP4, directPort), at(keepVIP6, directPort)}
	r, err := c.HTTP(p.ctx, topo.HTTPLoad{Targets: tcp, Requests: 300, Concurrency: 8})
	if err != nil || r.Failed() > 0 || len(r.Shares) != directNodes || len(r.Clients) != 2 ||
		r.Clients[c.Addr4().String()] == 0 || r.Clients[c.Addr6().String()] == 0 {
		t.Fatalf("%v %v, pods saw %v", err, r, r.Clients)
	}
	load := topo.FlowLoad{Targets: tcp, Flows: 120, Interval: 200 * time.Millisecond}
	flows, err := c.OpenTCP(p.ctx, load)
	if err != nil {
		t.Fatal(err)
	}
	load.Targets, load.Flows = []netip.AddrPort{at(keepVIP4, directUDP), at(keepVIP6, directUDP)}, 40
	datagrams, err := c.OpenUDP(p.ctx, load)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(flows.AnsweredAgain(p.ctx, 20*time.Second, 2),
		datagrams.AnsweredAgain(p.ctx, 20*time.Second, 2)); err != nil {
		t.Error(err)
	}
	if r := datagrams.Finish(); r.Failed() > 0 || len(r.Shares) != directNodes {
		t.Errorf("UDP: %v", r)
	}
	p.seesDirectFlows(t)
	out, err := runOn(p.Backends[0], "", daemonBinary, "node", "check", "--vni", fmt.Sprint(directVNI))
	if err != nil || !strings.Contains(out, "200 OK") {
		t.Errorf("sluice node check: %v\n%s", err, out)
	}

	spread := flows.ByBackend()
	for _, nodes := range [][]*topo.Host{p.Backends[1:], p.Backends} {
		p.put(t, p.slices(nodes...)...)
		if err := flows.AnsweredAgain(p.ctx, 20*time.Second, 2); err != nil || flows.Broken() > 0 {
			t.Errorf("endpoints on %d nodes: %v, %d broken of %v", len(nodes), err, flows.Broken(), spread)
		}
	}
	gone, stay := p.Backends[directNodes-1], p.Backends[:directNodes-1]
	if err := p.proxies[directNodes-1].Stop(); err != nil {
		t.Error(err)
	}
	p.proxies = p.proxies[:directNodes-1]
	p.must(runOn(gone, "", "ip", "link", "set", "eth0", "down"))
	if err := p.cluster.Delete(p.ctx, cluster.NewNode(gone.Name, "")); err != nil {
		t.Fatal(err)
	}
	p.put(t, p.slices(stay...)...)
	p.onStayingNodes(t, flows, gone.Name, spread)
	r, err = c.HTTP(p.ctx, topo.HTTPLoad{Targets: tcp, Requests: 100, Concurrency: 8})
	if err != nil || r.Failed() > 0 || len(r.Shares) != len(stay) {
		t.Errorf("%d nodes: %v %v", len(stay), err, r)
	}
	flows.Stop()
	p.noReplies()
	p.damaged = true // the node that went counts what it could not send
}

// onStayingNodes expects answers from all nodes but one.
func (p *kubeProxyLab) onStayingNodes(t *testing.T, flows *topo.Flows, gone string, spread map[string]int) {
	t.Helper()
	if spread[gone] == 0 || len(spread) != directNodes {
		t.Fatalf("flows are on %v", spread)
	}
	before := flows.States()
	p.eventually(20*time.Second, "answers of the nodes that stay", func() bool {
		for i, s := range flows.States() {
			if s.Backend != gone && s.Broken == nil && s.Answers < before[i].Answers+2 {
				return false
			}
		}
		return true
	})
	for _, s := range flows.States() {
		if s.Backend != gone && s.Broken != nil {
			t.Errorf("a flow of %s broke: %v", s.Backend, s.Broken)
		}
	}
}

// prepare starts the control plane and kube-proxies, and writes all objects.
func (p *kubeProxyLab) prepare(l *lab, kubeconfig string) {
	t := l.t
	p.lab, p.cluster = l, clustertest.Start(l.ctx, t, cluster.Config{})
	list := append(p.slices(l.Backends...), p.service(),
		cluster.NewNode(gatewayNode, "", l.Gateway.Addr4(), l.Gateway.Addr6()))
	for _, h := range l.Backends {
		list = append(list, cluster.NewNode(h.Name, "", h.Addr4(), h.Addr6()))
	}
	if err := p.cluster.Put(l.ctx, list...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, proxy := range p.proxies {
			if err := proxy.Stop(); err != nil {
				t.Error(err)
			}
		}
	})
	for i, h := range l.Backends {
		if err := h.Forward(true); err != nil {
			t.Fatal(err)
		}
		p.startPod(i)
		l.endTunnel(h, l.Gateway)
		proxy, err := p.cluster.KubeProxy(l.ctx, cluster.ProxyConfig{Host: h, Node: h.Name, Mode: p.mode})
		if err != nil {
			t.Fatal(err)
		}
		p.proxies = append(p.proxies, proxy)
	}
	written, err := p.cluster.Gateway(l.ctx, l.Gateway)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(written, kubeconfig); err != nil {
		t.Fatal(err)
	}
}

// podAddresses are the pod's addresses on a node, by number, and the node's on the pod's link.
func podAddresses(i int) (pod, node [2]netip.Addr) {
	four, six := fmt.Sprintf("10.244.%d.", i), fmt.Sprintf("fd44:%x::", i)
	return [2]netip.Addr{netip.MustParseAddr(four + "5"), netip.MustParseAddr(six + "5")},
		[2]netip.Addr{netip.MustParseAddr(four + "1"), netip.MustParseAddr(six + "1")}
}

// startPod makes a namespace behind a node, as network plugins do, and serves there.
func (p *kubeProxyLab) startPod(i int) {
	t, h := p.t, p.Backends[i]
	pod, err := topo.NewSpace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pod.Close() })
	inside, outside := podAddresses(i)
	var server *topo.Server
	err = pod.Run(func() error {
		here, err := netns.Get()
		if err != nil {
			return err
		}
		defer here.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "pod0"
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(here)}
		return errors.Join(h.Run(func() error {
			return errors.Join(netlink.LinkAdd(veth), bringUp("pod0", outside))
		}), bringUp("lo", [2]netip.Addr{}), bringUp("eth0", inside), defaultRoutes(outside))
	})
	if err != nil {
		t.Fatal(err)
	}
	err = pod.Run(func() (err error) {
		server, err = topo.ServeHere(h.Name, backendPort, inside[:]...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
}

// bringUp gives an interface addresses, of which zero ones are left out, and brings it up.
func bringUp(name string, addresses [2]netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for i, a := range addresses {
		if !a.IsValid() {
			continue
		}
		net := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask([]int{24, 64}[i], a.BitLen())}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: net, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("%s: %v: %w", name, a, err)
		}
	}
	return netlink.LinkSetUp(link)
}

func defaultRoutes(via [2]netip.Addr) error {
	for _, a := range via {
		if err := netlink.RouteAdd(&netlink.Route{Gw: a.AsSlice()}); err != nil {
			return fmt.Errorf("default route by %v: %w", a, err)
		}
	}
	return nil
}

// service is a Service with a TCP and a UDP port and direct return.
func (p *kubeProxyLab) service() *corev1.Service {
	s := cluster.NewService("default", "direct", []corev1.ServicePort{
		{Name: "tcp", Port: directPort, TargetPort: intstr.FromInt32(backendPort), Protocol: corev1.ProtocolTCP},
		{Name: "udp", Port: directUDP, TargetPort: intstr.FromInt32(backendPort), Protocol: corev1.ProtocolUDP},
	}, netip.MustParseAddr(keepVIP4), netip.MustParseAddr(keepVIP6))
	dual := corev1.IPFamilyPolicyRequireDualStack
	s.Spec.IPFamilyPolicy, s.Spec.ExternalTrafficPolicy = &dual, corev1.ServiceExternalTrafficPolicyLocal
	s.Annotations = map[string]string{"sluice.dev/forwarding": "direct"}
	return s
}

// slices are the Service's slices, with the pods of some nodes.
func (p *kubeProxyLab) slices(nodes ...*topo.Host) []cluster.Object {
	var four, six []discoveryv1.Endpoint
	for i, h := range p.Backends {
		if slices.Contains(nodes, h) {
			pod, _ := podAddresses(i)
			four = append(four, cluster.NewEndpoint(h.Name, pod[0]))
			six = append(six, cluster.NewEndpoint(h.Name, pod[1]))
		}
	}
	s := p.service()
	return []cluster.Object{cluster.NewSlice(s, "v4", corev1.IPv4Protocol, four...),
		cluster.NewSlice(s, "v6", corev1.IPv6Protocol, six...)}
}

// put writes objects, and returns when gateway and nodes have applied them.
func (p *kubeProxyLab) put(t *testing.T, objects ...cluster.Object) {
	t.Helper()
	before := p.outageState().generation
	if err := p.cluster.Put(p.ctx, objects...); err != nil {
		t.Fatal(err)
	}
	for _, proxy := range p.proxies {
		if err := proxy.Settle(p.ctx); err != nil {
			t.Fatal(err)
		}
	}
	p.eventually(20*time.Second, "a table of the change", func() bool { return p.outageState().generation > before })
	p.applied()
}
