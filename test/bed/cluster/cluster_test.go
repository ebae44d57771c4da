//go:build root

package cluster

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"sluice.dev/sluice/test/bed/topo"
)

// startCluster starts a control plane for one test and sees that it leaves nothing.
func startCluster(t *testing.T, config Config) *Cluster {
	t.Helper()
	needRoot(t)
	if !Enabled() {
		t.Skip("needs a control plane, which takes minutes to build: " + EnableVariable + "=1, or make -C test cluster")
	}
	ctx := testContext(t)
	var err error
	if config.Binaries, err = Build(ctx, os.Stderr); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	c, err := Start(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("control plane ready after %.1f s", time.Since(begin).Seconds())
	t.Cleanup(func() { closeCluster(t, c) })
	return c
}

func closeCluster(t *testing.T, c *Cluster) {
	pids := []int{c.etcd.PID()}
	if c.apiServer != nil {
		pids = append(pids, c.apiServer.PID())
	}
	dir, port := c.dir, c.port.number
	if err := c.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d is left: %v", pid, err)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}
	if c.outside == nil {
		return
	}
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		t.Errorf("port %d is not free: %v", port, err)
		return
	}
	l.Close()
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces")
	}
}

// newNet makes a network whose gateway forwards with its kernel.
func newNet(t *testing.T, c topo.Config) *topo.Net {
	t.Helper()
	needRoot(t)
	n, err := topo.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close the network: %v", err)
		}
		if left, err := n.Leftovers(); err != nil || len(left) != 0 {
			t.Errorf("left over: %v %v", left, err)
		}
	})
	if err := n.Gateway.Forward(true); err != nil {
		t.Fatal(err)
	}
	return n
}

func webService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type:  corev1.ServiceTypeLoadBalancer,
			Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
}

// TestObjects writes, rewrites and deletes objects, and stops the API server between.
func TestObjects(t *testing.T) {
	c, ctx := startCluster(t, Config{}), testContext(t)
	web := webService()
	web.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.10"}}
	node := NewNode("gateway", "a", netip.MustParseAddr("10.72.0.1"))
	slice := NewSlice(web, "a", corev1.IPv4Protocol, NewEndpoint("n1", netip.MustParseAddr("10.72.0.100")))
	if err := c.Put(ctx, web, node, slice); err != nil {
		t.Fatal(err)
	}
	read := func() *corev1.Service {
		t.Helper()
		s, err := c.Client().CoreV1().Services("shop").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := read()
	if ip := first.Status.LoadBalancer.Ingress; len(ip) != 1 || ip[0].IP != "203.0.113.10" {
		t.Errorf("load balancer status: %+v", ip)
	}
	if !netip.MustParsePrefix(ServiceRange4).Contains(netip.MustParseAddr(first.Spec.ClusterIP)) {
		t.Errorf("cluster IP %s is not of %s", first.Spec.ClusterIP, ServiceRange4)
	}

	begin := time.Now()
	if err := c.StopAPIServer(0); err != nil {
		t.Fatal(err)
	}
	if _, err := net.Dial("tcp4", strings.TrimPrefix(c.URL(), "https://")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial the stopped API server: %v, want refused", err)
	}
	if err := c.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("API server killed and ready again after %.1f s", time.Since(begin).Seconds())

	// What it claims by itself already is no reason to refuse it.
	web.Spec.ClusterIP, web.Spec.ClusterIPs, web.Spec.Ports[0].NodePort = first.Spec.ClusterIP, first.Spec.ClusterIPs,
		first.Spec.Ports[0].NodePort
	web.Spec.Ports[0].Port = 81
	web.Status.LoadBalancer.Ingress = nil
	if err := c.Put(ctx, web); err != nil {
		t.Fatal(err)
	}
	second := read()
	if second.UID != first.UID || second.Spec.ClusterIP != first.Spec.ClusterIP ||
		second.Spec.Ports[0].NodePort != first.Spec.Ports[0].NodePort {
		t.Errorf("update made another service: %+v, was %+v", second.Spec, first.Spec)
	}
	if second.Spec.Ports[0].Port != 81 || len(second.Status.LoadBalancer.Ingress) != 0 {
		t.Errorf("update did not arrive: %+v %+v", second.Spec, second.Status)
	}

	if err := c.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	if left := names(ctx, t, c.Client()); !slices.Equal(left, []string{"kubernetes"}) {
		t.Errorf("left after Reset: %v", left)
	}
}

// names is what there is of the kinds that Reset deletes.
func names(ctx context.Context, t *testing.T, k kubernetes.Interface) (all []string) {
	t.Helper()
	services, err1 := k.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	slices, err2 := k.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
	nodes, err3 := k.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for i := range services.Items {
		all = append(all, services.Items[i].Name)
	}
	for i := range slices.Items {
		all = append(all, slices.Items[i].Name)
	}
	for i := range nodes.Items {
		all = append(all, nodes.Items[i].Name)
	}
	return all
}

// TestLeastPrivilege has an account that may read Services read them, and nothing
// else, by its kubeconfig and from another namespace.
func TestLeastPrivilege(t *testing.T) {
	n := newNet(t, topo.Config{OneArmed: true})
	// The control plane is in a namespace too, so nothing is reached by accident.
	c, ctx := startCluster(t, Config{Host: n.Backends[0]}), testContext(t)
	user, err := c.ServiceAccount(ctx, "kube-system", "sluice", rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list", "watch"},
	})
	if err != nil {
		t.Fatal(err)
	}
	url, err := c.Expose(n.Gateway)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Expose(n.Gateway); err != nil || again != url {
		t.Errorf("exposed again as %s: %v", again, err)
	}
	path, err := c.Kubeconfig(user, url)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	config.Dial = n.Gateway.Dial
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := k.CoreV1().Services("").List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("list services: %v, want the kubernetes service", err)
	}
	if _, err := k.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("list secrets: %v, want forbidden", err)
	}
	if err := c.StopAPIServer(stopTimeout); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Gateway.Dial(ctx, "tcp4", strings.TrimPrefix(url, "https://")); !errors.Is(err,
		syscall.ECONNREFUSED) {
		t.Errorf("dial the stopped API server: %v, want refused", err)
	}
	if err := c.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := k.CoreV1().Services("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("list services after a restart: %v", err)
	}
}
