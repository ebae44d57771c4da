package reach

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// namespace is the release's, as deploy/tools renders it.
const namespace = "sluice-system"

// Settings are what tests vary of the objects, and of the router.
type Settings struct {
	Addresses string // of the pool: prefixes and ranges, with commas
	DualStack bool   // the session carries IPv6, too
	// Restart: graceful restart of BGP; BFD is off then, because it would withdraw the routes that
	// a restart keeps.
	Restart bool
}

// Objects are a pool, and who is told of its addresses.
func (l *Lab) Objects(s Settings) string {
	more := "bfdProfile: fast"
	if s.Restart {
		more = "enableGracefulRestart: true"
	}
	if s.DualStack {
		more += ", dualStackAddressFamily: true"
	}
	return fmt.Sprintf(`apiVersion: sluice.dev/v1alpha1
kind: AddressPool
metadata: {name: public}
spec: {addresses: [%s]}
---
apiVersion: sluice.dev/v1alpha1
kind: BFDProfile
metadata: {name: fast}
spec: {receiveInterval: 100, transmitInterval: 100, detectMultiplier: 3}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPPeer
metadata: {name: router}
spec: {myASN: 64500, peerASN: 64501, peerAddress: %s, connectTime: 1s, %s}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPAdvertisement
metadata: {name: all}
spec: {}
`, s.Addresses, l.Net.Router.Addr4(), more)
}

// RouterConfig is BIRD's: a session with each gateway, and routes by all of them.
func (l *Lab) RouterConfig(s Settings) string {
	var b strings.Builder
	failure := "bfd on; graceful restart off"
	if s.Restart {
		failure = "graceful restart on"
	}
	direct, kernel, channel := "ipv4;", "", ""
	if s.DualStack {
		direct, channel = "ipv4; ipv6;", " ipv6 { import all; export none; };"
		kernel = "protocol kernel { ipv6 { export where source = RTS_BGP; }; merge paths on; }\n"
	}
	fmt.Fprintf(&b, `router id %[1]s;
log stderr all;
protocol device {}
protocol direct { %[3]s }
protocol kernel { ipv4 { export where source = RTS_BGP; }; merge paths on; }
%[4]sprotocol bfd { interface "*" { interval 100 ms; multiplier 3; }; }
template bgp gateways {
  local %[1]s as 64501; passive; %[2]s; error wait time 1, 1;
  ipv4 { import all; export none; };%[5]s
}
`, l.Net.Router.Addr4(), failure, direct, kernel, channel)
	for i, h := range l.Net.Gateways {
		fmt.Fprintf(&b, "protocol bgp g%d from gateways { neighbor %s as 64500; }\n", i, h.Addr4())
	}
	return b.String()
}

// chart are the files of deploy/manifests, and workloads the kinds in them that kubelets run.
var (
	chart     = []string{"sluice.yaml", "controller.yaml", "announcer.yaml"}
	workloads = []string{"DaemonSet", "Deployment"}
)

// Install applies the objects of the chart except workloads, which no kubelet would run: kinds,
// accounts and rights. It returns when the kinds are served.
func (l *Lab) Install(ctx context.Context) error {
	dir, err := cluster.ModuleDir(ctx, "deploy/manifests")
	if err != nil {
		return err
	}
	for _, file := range chart {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return err
		}
		objects, err := cluster.Decode(text)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		kept := objects[:0]
		for _, o := range objects {
			if !slices.Contains(workloads, o.GetKind()) {
				kept = append(kept, o)
			}
		}
		if err := l.Cluster.ApplyObjects(ctx, kept...); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return topo.Until(ctx, machine.Slower(30*time.Second), 10*time.Millisecond, func(context.Context) error {
		list, err := l.Cluster.Client().Discovery().ServerResourcesForGroupVersion("sluice.dev/v1alpha1")
		if err != nil {
			return err
		}
		if n := len(list.APIResources); n < kindCount {
			return fmt.Errorf("%d of %d kinds are served", n, kindCount)
		}
		return nil
	})
}

// kindCount is how many kinds of sluice.dev there are.
const kindCount = 5

// Service makes a Service of type LoadBalancer without an address, and its slice with the backends
// as endpoints, over IPv4.
func (l *Lab) Service(name string) (*corev1.Service, *discoveryv1.EndpointSlice) {
	s := cluster.NewService(metav1.NamespaceDefault, name, []corev1.ServicePort{{Port: Port,
		TargetPort: intstr.FromInt32(TargetPort)}})
	s.Spec.Type, s.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer, new(bool)
	return s, l.slice4(s)
}

func (l *Lab) slice4(s *corev1.Service) *discoveryv1.EndpointSlice {
	var endpoints []discoveryv1.Endpoint
	for _, b := range l.Net.Backends {
		endpoints = append(endpoints, cluster.NewEndpoint(b.Name, b.Addr4()))
	}
	return cluster.NewSlice(s, "ipv4", corev1.IPv4Protocol, endpoints...)
}

// Slices makes the EndpointSlices of a Service of Service's form over both families.
func (l *Lab) Slices(name string) []*discoveryv1.EndpointSlice {
	s, slice := l.Service(name)
	var endpoints []discoveryv1.Endpoint
	for _, b := range l.Net.Backends {
		endpoints = append(endpoints, cluster.NewEndpoint(b.Name, b.Addr6()))
	}
	return []*discoveryv1.EndpointSlice{slice, cluster.NewSlice(s, "ipv6", corev1.IPv6Protocol, endpoints...)}
}
