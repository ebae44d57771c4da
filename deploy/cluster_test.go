//go:build root

package deploy

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/cluster/clustertest"
	"sluice.dev/sluice/test/bed/topo"
)

// A real API server accepts the manifests, and the daemon, confined as its pod and with only the
// rights of the manifests' account, serves the API server's Services and writes an Event.
func TestRealAPIServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	k := clustertest.Start(ctx, t, cluster.Config{})
	o := readManifests(t)
	create(ctx, t, k.Client(), &o)
	user := "system:serviceaccount:" + o.namespace.Name + ":" + o.serviceAccount.Name
	for _, mayNot := range []authorizationv1.ResourceAttributes{
		{Verb: "update", Resource: "services", Subresource: "status"}, {Verb: "get", Resource: "secrets"},
		{Verb: "list", Resource: "pods"},
		{Verb: "patch", Resource: "nodes"}, {Verb: "delete", Group: "events.k8s.io", Resource: "events"},
		{Verb: "create", Resource: "events"},
	} {
		r, err := k.Client().AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &mayNot},
		}, metav1.CreateOptions{})
		if err != nil || r.Status.Allowed {
			t.Errorf("the account may %s %s/%s: %v", mayNot.Verb, mayNot.Group, mayNot.Resource, err)
		}
	}
	c := newConfinedWith(t, buildDaemon(t), capabilities(t, &o), func(n *topo.Net) string {
		return "kubernetes: {enabled: true, kubeconfig: " + kubeconfig(ctx, t, k, n.Gateway, &o) + "}\n"
	})
	put(ctx, t, k, c.net)
	if err := c.gate.Start(ctx); err != nil {
		t.Fatalf("%v\n%s", err, c.gate.Log())
	}
	c.ask(ctx, t)
	waitForEvent(ctx, t, k.Client(), c)
	if log := c.gate.Log(); strings.Contains(log, "forbidden") {
		t.Errorf("the account was refused something:\n%s", log)
	}
}

// create creates the manifests' objects unchanged; the API server rejects unknown fields.
func create(ctx context.Context, t *testing.T, client kubernetes.Interface, o *objects) {
	t.Helper()
	strict := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	namespace := o.namespace.Name
	for _, f := range []func() error{
		func() error { _, err := client.CoreV1().Namespaces().Create(ctx, &o.namespace, strict); return err },
		func() error {
			_, err := client.CoreV1().ServiceAccounts(namespace).Create(ctx, &o.serviceAccount, strict)
			return err
		},
		func() error {
			_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, &o.configMap, strict)
			return err
		},
		func() error { _, err := client.RbacV1().ClusterRoles().Create(ctx, &o.role, strict); return err },
		func() error {
			_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, &o.binding, strict)
			return err
		},
		func() error { _, err := client.RbacV1().Roles(namespace).Create(ctx, &o.ownRole, strict); return err },
		func() error {
			_, err := client.RbacV1().RoleBindings(namespace).Create(ctx, &o.ownBinding, strict)
			return err
		},
		func() error {
			_, err := client.AppsV1().DaemonSets(namespace).Create(ctx, &o.daemonSet, strict)
			return err
		},
	} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
}

// kubeconfig writes the kubeconfig of the manifests' account on the gateway.
func kubeconfig(ctx context.Context, t *testing.T, k *cluster.Cluster, gateway *topo.Host, o *objects) string {
	t.Helper()
	user, err := k.ServiceAccount(ctx, o.namespace.Name, o.serviceAccount.Name)
	if err != nil {
		t.Fatal(err)
	}
	url, err := k.Expose(gateway)
	if err != nil {
		t.Fatal(err)
	}
	path, err := k.Kubeconfig(user, url)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// put creates a Service with VIPs of both families, its endpoints, another Service with one of the
// VIPs, and the gateway's Node.
func put(ctx context.Context, t *testing.T, k *cluster.Cluster, n *topo.Net) {
	t.Helper()
	dual := corev1.IPFamilyPolicyRequireDualStack
	web := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, IPFamilyPolicy: &dual,
			Ports: []corev1.ServicePort{
				{Name: "http", Port: webPort, TargetPort: intstr.FromInt32(backendPort), Protocol: corev1.ProtocolTCP},
			}},
		Status: corev1.ServiceStatus{
			LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: vip4}, {IP: vip6}}},
		},
	}
	rival := web.DeepCopy()
	rival.Name = "web-rival"
	byFamily := map[corev1.IPFamily][]discoveryv1.Endpoint{}
	for _, h := range n.Backends {
		if _, err := h.Serve(backendPort); err != nil {
			t.Fatal(err)
		}
		for family, a := range map[corev1.IPFamily]netip.Addr{
			corev1.IPv4Protocol: h.Addr4(), corev1.IPv6Protocol: h.Addr6(),
		} {
			byFamily[family] = append(byFamily[family], cluster.NewEndpoint(h.Name, a))
		}
	}
	list := []cluster.Object{cluster.NewNode("gateway", "", n.Gateway.Addr4(), n.Gateway.Addr6()), web, rival}
	for family, endpoints := range byFamily {
		list = append(list, cluster.NewSlice(web, strings.ToLower(string(family)), family, endpoints...))
	}
	if err := k.Put(ctx, list...); err != nil {
		t.Fatal(err)
	}
}

// waitForEvent waits for the Event about the conflicting VIP.
func waitForEvent(ctx context.Context, t *testing.T, client kubernetes.Interface, c *confined) {
	t.Helper()
	var seen []string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		list, err := client.EventsV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		seen = nil
		for _, e := range list.Items {
			if e.Reason == "FrontendConflict" && strings.HasPrefix(e.Regarding.Name, "web") && e.Regarding.UID != "" {
				return
			}
			seen = append(seen, fmt.Sprintf("%s about %s %q", e.Reason, e.Regarding.Name, e.Regarding.UID))
		}
	}
	fmt.Fprintln(os.Stderr, c.gate.Log())
	t.Errorf("no Event about the frontend that two Services ask for, with its UID; there were %v", seen)
}
