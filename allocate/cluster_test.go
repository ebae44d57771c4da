package allocate_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/allocate"
	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/cluster/clustertest"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// lab is an API server with the AddressPool kind, for one test.
type lab struct {
	*testing.T
	*cluster.Cluster
	ctx     context.Context
	client  *kubernetes.Clientset
	dynamic dynamic.Interface
}

func newLab(t *testing.T) *lab {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), machine.Slower(5*time.Minute))
	t.Cleanup(cancel)
	c := clustertest.Start(ctx, t, cluster.Config{})
	l := &lab{T: t, Cluster: c, ctx: ctx, client: c.Client()}
	var err error
	if l.dynamic, err = dynamic.NewForConfig(c.RESTConfig(c.Admin())); err != nil {
		t.Fatal(err)
	}
	clustertest.Kinds(ctx, t, c, "../deploy/chart/files/addresspools.yaml")
	l.namespace("sluice-system")
	return l
}

func (l *lab) namespace(name string) {
	l.Helper()
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := l.client.CoreV1().Namespaces().Create(l.ctx, n, metav1.CreateOptions{}); err != nil {
		l.Fatal(err)
	}
}

// eventually waits until a condition holds.
func (l *lab) eventually(what string, is func() error) {
	l.Helper()
	within := machine.Slower(time.Minute)
	if err := topo.Until(l.ctx, within, 10*time.Millisecond, func(context.Context) error { return is() }); err != nil {
		l.Fatalf("%s: not within %v: %v", what, within, err)
	}
}

var poolKind = schema.GroupVersionResource{Group: "sluice.dev", Version: "v1alpha1", Resource: "addresspools"}

// pool returns an AddressPool with a specification in YAML.
func pool(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	o := map[string]any{}
	if err := yaml.Unmarshal([]byte(spec), &o); err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "sluice.dev/v1alpha1", "kind": "AddressPool",
		"metadata": map[string]any{"name": name}, "spec": o}}
}

func (l *lab) createPool(name, spec string) {
	l.Helper()
	if _, err := l.dynamic.Resource(poolKind).Create(l.ctx, pool(l.T, name, spec), metav1.CreateOptions{}); err != nil {
		l.Fatal(err)
	}
}

// service returns a Service of type LoadBalancer; changes are made before it is created.
func service(name string, changes ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default",
		Annotations: map[string]string{}},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}}}
	no := false // else the API server has no node port left after some thousand Services
	s.Spec.AllocateLoadBalancerNodePorts = &no
	for _, change := range changes {
		change(s)
	}
	return s
}

func annotated(key, value string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations[key] = value }
}

func (l *lab) create(services ...*corev1.Service) {
	l.Helper()
	errs := make([]error, len(services))
	workqueue.ParallelizeUntil(l.ctx, 16, len(services), func(i int) {
		s := services[i]
		_, errs[i] = l.client.CoreV1().Services(s.Namespace).Create(l.ctx, s, metav1.CreateOptions{})
	})
	if err := errors.Join(errs...); err != nil {
		l.Fatal(err)
	}
}

func (l *lab) get(name string) *corev1.Service {
	l.Helper()
	s, err := l.client.CoreV1().Services("default").Get(l.ctx, name, metav1.GetOptions{})
	if err != nil {
		l.Fatal(err)
	}
	return s
}

func addressesOf(s *corev1.Service) (list []string) {
	for _, i := range s.Status.LoadBalancer.Ingress {
		list = append(list, i.IP)
	}
	return list
}

// has waits until a Service has certain addresses and its condition a certain reason.
func (l *lab) has(name, reason string, addresses ...string) *corev1.Service {
	l.Helper()
	var s *corev1.Service
	l.eventually("Service "+name, func() error {
		s = l.get(name)
		c := meta.FindStatusCondition(s.Status.Conditions, allocate.ConditionType)
		if c == nil || c.Reason != reason || !slices.Equal(addressesOf(s), addresses) {
			return fmt.Errorf("has %v, condition %+v, want %v, %s", addressesOf(s), c, addresses, reason)
		}
		return nil
	})
	return s
}

// waitForEvent waits for an Event.
func (l *lab) waitForEvent(kind, name, reason, part string) {
	l.Helper()
	l.eventually("Event about "+name, func() error {
		list, err := l.client.EventsV1().Events(metav1.NamespaceAll).List(l.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var notes []string
		for _, e := range list.Items {
			if e.Regarding.Kind == kind && e.Regarding.Name == name {
				notes = append(notes, e.Reason+": "+e.Note)
				if e.Reason == reason && strings.Contains(e.Note, part) {
					return nil
				}
			}
		}
		return fmt.Errorf("no %s with %q in %q", reason, part, notes)
	})
}

// process is a controller.
type process struct {
	*exec.Cmd
	log    *os.File
	exited chan struct{}
	err    error
}

func build(t *testing.T) (binary string) {
	t.Helper()
	binary = filepath.Join(t.TempDir(), "sluice-controller")
	c := exec.Command("go", "build", "-o", binary, "sluice.dev/sluice/cmd/sluice-controller")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return binary
}

// controller starts a controller with the chart's rights only.
func (l *lab) controller(binary string, args ...string) *process {
	l.Helper()
	return l.controllerWith(rights(l.T), binary, args...)
}

func (l *lab) controllerWith(rights []rbacv1.PolicyRule, binary string, args ...string) *process {
	l.Helper()
	user, err := l.ServiceAccount(l.ctx, "sluice-system", "controller", rights...)
	if err != nil {
		l.Fatal(err)
	}
	kubeconfig, err := l.Kubeconfig(user, "")
	if err != nil {
		l.Fatal(err)
	}
	p := &process{exited: make(chan struct{})}
	if p.log, err = os.CreateTemp(l.TempDir(), "log"); err != nil {
		l.Fatal(err)
	}
	p.Cmd = exec.Command(binary, append([]string{"--kubeconfig", kubeconfig, "--namespace", "sluice-system",
		"--listen", "", "--log", "text"}, args...)...)
	p.Stderr = p.log
	if err := p.Start(); err != nil {
		l.Fatal(err)
	}
	go func() { p.err = p.Wait(); close(p.exited) }()
	l.Cleanup(func() {
		p.Process.Kill()
		<-p.exited
		p.log.Close()
		if text, err := os.ReadFile(p.log.Name()); err == nil && l.Failed() {
			l.Logf("log of a controller:\n%s", text[max(0, len(text)-4000):])
		}
	})
	return p
}

// stop ends a controller with SIGTERM, as Kubernetes does.
func (l *lab) stop(p *process) {
	l.Helper()
	if err := p.Process.Signal(os.Interrupt); err != nil {
		l.Fatal(err)
	}
	l.ended(p)
	if p.err != nil {
		l.Errorf("the controller ended with %v", p.err)
	}
}

func (l *lab) ended(p *process) {
	l.Helper()
	select {
	case <-p.exited:
	case <-time.After(machine.Slower(time.Minute)):
		l.Fatal("the controller does not end")
	}
}

// versions returns the resourceVersion of each Service of a namespace.
func (l *lab) versions() map[string]string {
	l.Helper()
	list, err := l.client.CoreV1().Services("default").List(l.ctx, metav1.ListOptions{})
	if err != nil {
		l.Fatal(err)
	}
	all := map[string]string{}
	for i := range list.Items {
		all[list.Items[i].Name] = list.Items[i].ResourceVersion
	}
	return all
}

// TestPoolsThatAreRefused: the API server's schema rejects pools with mistakes and names the field.
func TestPoolsThatAreRefused(t *testing.T) {
	l := newLab(t)
	for _, test := range []struct{ name, spec, want string }{
		{"nothing", `{}`, "addresses: Required"},
		{"no addresses", `{addresses: []}`, "at least 1 item"},
		{"an address", `{addresses: [192.0.2.1]}`, "must be a prefix such as"},
		{"a name", `{addresses: [web]}`, "must be a prefix such as"},
		{"host bits", `{addresses: [192.0.2.1/24]}`, "bits after the prefix"},
		{"host bits, IPv6", `{addresses: ["2001:db8::1/64"]}`, "bits after the prefix"},
		{"leading zeros", `{addresses: [192.0.02.0/24]}`, "must be a prefix such as"},
		{"half a range", `{addresses: [192.0.2.1-]}`, "range of two addresses"},
		{"three addresses", `{addresses: [192.0.2.1-192.0.2.2-192.0.2.3]}`, "range of two addresses"},
		{"range of prefixes", `{addresses: [192.0.2.0/24-192.0.3.0/24]}`, "range of two addresses"},
		{"two families", `{addresses: ["192.0.2.1-2001:db8::1"]}`, "of one family"},
		{"backwards", `{addresses: [192.0.2.9-192.0.2.1]}`, "must not be after the last"},
		{"backwards by a byte before", `{addresses: [192.0.3.1-192.0.2.9]}`, "must not be after the last"},
		{"loopback", `{addresses: [127.0.0.0/8]}`, "addresses of hosts"},
		{"multicast", `{addresses: [224.0.0.1-224.0.0.9]}`, "addresses of hosts"},
		{"link-local", `{addresses: ["fe80::/64"]}`, "addresses of hosts"},
		{"everything", `{addresses: [0.0.0.0/0]}`, "addresses of hosts"},
		{"second is bad", `{addresses: [192.0.2.0/24, x]}`, "addresses[1]"},
		{"wrong type", `{addresses: 192.0.2.0/24}`, "must be of type array"},
		{"autoAssign", `{addresses: [192.0.2.0/24], autoAssign: "no"}`, "must be of type boolean"},
		{"nobody", `{addresses: [192.0.2.0/24], serviceAllocation: {priority: 1}}`, "selects no Service"},
		{"nobody, empty", `{addresses: [192.0.2.0/24], serviceAllocation: {namespaces: []}}`, "selects no Service"},
		{"priority", `{addresses: [192.0.2.0/24], serviceAllocation: {priority: -1, namespaces: [a]}}`, "greater than or"},
		{"twice", `{addresses: [192.0.2.0/24], serviceAllocation: {namespaces: [a, a]}}`, "Duplicate"},
		{"a namespace's name", `{addresses: [192.0.2.0/24], serviceAllocation: {namespaces: [A]}}`, "should match"},
		{"operator", `{addresses: [192.0.2.0/24], serviceAllocation: {serviceSelectors: [{matchExpressions: ` +
			`[{key: a, operator: Near}]}]}}`, "Unsupported value"},
		{"In without values", `{addresses: [192.0.2.0/24], serviceAllocation: {serviceSelectors: [{matchExpressions: ` +
			`[{key: a, operator: In}]}]}}`, "need values"},
	} {
		_, err := l.dynamic.Resource(poolKind).Create(l.ctx, pool(t, "bad", test.spec), metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
	for i, spec := range []string{
		`{addresses: [192.0.2.0/24, 198.51.100.7/32, 203.0.113.1-203.0.113.1, "2001:db8::/64", "2001:db8::1 - 2001:db8::9"]}`,
		`{addresses: [192.0.2.10 - 192.0.2.200], autoAssign: false, avoidBuggyIPs: true, serviceAllocation: {priority: 5, ` +
			`namespaces: [a, b], namespaceSelectors: [{matchLabels: {team: x}}], serviceSelectors: [{matchExpressions: ` +
			`[{key: app, operator: In, values: [web]}, {key: old, operator: DoesNotExist}]}]}}`,
	} {
		l.createPool(fmt.Sprint("good", i), spec)
	}
}

// TestServices follows Services from creation to an address, and back.
func TestServices(t *testing.T) {
	l := newLab(t)
	p := l.controller(build(t))
	l.create(service("early"))
	l.has("early", "NoPool")
	l.createPool("main", `{addresses: [192.0.2.0/30, "2001:db8::/126"]}`)
	l.has("early", "Assigned", "192.0.2.0")
	l.waitForEvent("Service", "early", "NoPool", "create an AddressPool")
	l.waitForEvent("Service", "early", "Assigned", "192.0.2.0 of pool main")
	if s := l.get("early"); *s.Status.LoadBalancer.Ingress[0].IPMode != corev1.LoadBalancerIPModeVIP {
		t.Errorf("status is %+v", s.Status)
	}

	dual := corev1.IPFamilyPolicyRequireDualStack
	l.create(service("dual", func(s *corev1.Service) { s.Spec.IPFamilyPolicy = &dual }))
	l.has("dual", "Assigned", "192.0.2.1", "2001:db8::")

	other, own := "example.org/lb", "sluice.dev/sluice"
	l.create(service("foreign", func(s *corev1.Service) { s.Spec.LoadBalancerClass = &other }),
		service("own", func(s *corev1.Service) { s.Spec.LoadBalancerClass = &own }))
	l.has("own", "Assigned", "192.0.2.2")

	l.create(service("taken", annotated("metallb.io/loadBalancerIPs", "192.0.2.1")),
		service("outside", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "203.0.113.1" }),
		service("unknown", annotated("metallb.universe.tf/address-pool", "nowhere")),
		service("bad", annotated("lbipam.cilium.io/ips", "x")),
		service("shared", annotated("metallb.io/allow-shared-ip", "k")))
	l.has("shared", "Assigned", "192.0.2.3")
	l.create(service("sharing", annotated("metallb.io/allow-shared-ip", "other"),
		annotated("metallb.io/loadBalancerIPs", "192.0.2.3"), func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 }),
		service("same-port", annotated("metallb.io/allow-shared-ip", "k"),
			annotated("metallb.io/loadBalancerIPs", "192.0.2.3")),
		service("waits"))
	for name, want := range map[string]struct{ reason, part string }{
		"taken": {"AddressTaken", "default/dual has it"}, "outside": {"OutsidePools", "203.0.113.1"},
		"unknown": {"UnknownPool", "nowhere"}, "bad": {"BadWish", "lbipam.cilium.io/ips"},
		"sharing": {"BadSharingKey", "default/shared has it, with another sharing key"},
		"waits":   {"PoolEmpty", "no free IPv4 address in pool main"}, "same-port": {"PortTaken", "80/TCP"},
	} {
		l.has(name, want.reason)
		l.waitForEvent("Service", name, want.reason, want.part)
	}

	// Freed addresses go to waiting Services: after a deletion, a change of type, a withdrawn wish.
	if err := l.client.CoreV1().Services("default").Delete(l.ctx, "own", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.has("waits", "Assigned", "192.0.2.2")
	l.change("dual", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeClusterIP
		s.Spec.AllocateLoadBalancerNodePorts = nil
	})
	l.has("taken", "Assigned", "192.0.2.1")
	l.eventually("dual has nothing of ours", func() error {
		if s := l.get("dual"); len(s.Status.Conditions)+len(s.Status.LoadBalancer.Ingress) > 0 {
			return fmt.Errorf("status is %+v", s.Status)
		}
		return nil
	})
	l.change("unknown", func(s *corev1.Service) { delete(s.Annotations, "metallb.universe.tf/address-pool") })
	l.has("unknown", "PoolEmpty")
	l.createPool("more", `{addresses: [198.51.100.0/28]}`)
	l.has("unknown", "Assigned", "198.51.100.0")
	if s := l.get("foreign"); len(s.Status.Conditions)+len(s.Status.LoadBalancer.Ingress) > 0 {
		t.Errorf("a Service of another class was written: %+v", s.Status)
	}
	l.stop(p)
}

// change changes a Service.
func (l *lab) change(name string, change func(*corev1.Service)) {
	l.Helper()
	l.eventually("change "+name, func() error {
		s := l.get(name)
		change(s)
		_, err := l.client.CoreV1().Services("default").Update(l.ctx, s, metav1.UpdateOptions{})
		return err
	})
}

// TestThousandAtOnce: 1,000 Services have an address each. They keep it when the controller ends or
// is killed and another one starts, and when pools change around them.
func TestThousandAtOnce(t *testing.T) {
	l := newLab(t)
	binary := build(t)
	p := l.controller(binary, "--lease-duration", "3s")
	l.createPool("main", `{addresses: [100.64.0.0/20], avoidBuggyIPs: true}`)
	l.create(service("first"))
	l.has("first", "Assigned", "100.64.0.1")
	const n = 1000
	var services []*corev1.Service
	for i := range n {
		services = append(services, service(fmt.Sprintf("s%04d", i)))
	}
	begin := time.Now()
	l.create(services...)
	created := time.Since(begin)
	before := l.allAssigned(n + 1)
	t.Logf("%d Services: created within %v, all with an address %v after the first was", n,
		created.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))

	l.stop(p) // releases the Lease: the next leader need not fence
	versions := l.versions()
	p = l.controller(binary, "--lease-duration", "3s")
	l.create(service("second"))
	l.allAssigned(n + 2)
	for name, version := range l.versions() {
		if name != "second" && versions[name] != version {
			t.Errorf("Service %s was written after the Lease was handed over", name)
		}
	}
	p.Process.Kill() // the next one waits for the Lease, and fences
	l.ended(p)
	l.createPool("more", `{addresses: [100.65.0.0/24]}`)
	p = l.controller(binary, "--lease-duration", "3s")
	l.create(service("third"))
	after := l.allAssigned(n + 3)
	for name, address := range before {
		if after[name] != address {
			t.Errorf("Service %s had %s, and has %s", name, address, after[name])
		}
	}
	l.stop(p)
}

// allAssigned waits until a number of Services has an address each, no two the same.
func (l *lab) allAssigned(n int) map[string]string {
	l.Helper()
	var all map[string]string
	l.eventually("all Services have an address", func() error {
		list, err := l.client.CoreV1().Services("default").List(l.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		all = map[string]string{}
		by := map[string]string{}
		for i := range list.Items {
			s := &list.Items[i]
			for _, address := range addressesOf(s) {
				if by[address] != "" {
					l.Fatalf("%s and %s have %s", by[address], s.Name, address)
				}
				by[address], all[s.Name] = s.Name, address
				if a := netip.MustParseAddr(address).As4(); a[3] == 0 || a[3] == 255 {
					l.Fatalf("%s has %s", s.Name, address)
				}
			}
		}
		if len(all) != n {
			return fmt.Errorf("%d of %d have one", len(all), n)
		}
		return nil
	})
	return all
}

// TestUnreadablePool: the ends of an IPv6 range are swapped, which the schema cannot check. That
// takes no address away, neither in the process that knows the pool's previous version, nor in the
// next one, which does not.
func TestUnreadablePool(t *testing.T) {
	l := newLab(t)
	binary := build(t)
	p := l.controller(binary)
	l.createPool("main", `{addresses: ["2001:db8::10-2001:db8::1f"]}`)
	l.createPool("other", `{addresses: [192.0.2.0/24]}`)
	dual := corev1.IPFamilyPolicyRequireDualStack
	six := func(s *corev1.Service) {
		policy := corev1.IPFamilyPolicySingleStack
		s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &policy, []corev1.IPFamily{corev1.IPv6Protocol}
	}
	l.create(service("web", six))
	l.has("web", "Assigned", "2001:db8::10")
	change := func(spec string) {
		l.eventually("change the pool", func() error {
			o, err := l.dynamic.Resource(poolKind).Get(l.ctx, "main", metav1.GetOptions{})
			if err != nil {
				return err
			}
			o.Object["spec"] = pool(t, "main", spec).Object["spec"]
			_, err = l.dynamic.Resource(poolKind).Update(l.ctx, o, metav1.UpdateOptions{})
			return err
		})
	}
	change(`{addresses: ["2001:db8::1f-2001:db8::10"]}`)
	l.waitForEvent("AddressPool", "main", "PoolInvalid", "its previous version stays in force")
	l.create(service("more", six))
	l.has("more", "Assigned", "2001:db8::11")
	l.stop(p)

	p = l.controller(binary)
	l.waitForEvent("AddressPool", "main", "PoolInvalid", "Services keep their addresses that are in no other pool")
	l.waitForEvent("Service", "web", "PoolInvalid", "it stays until pool main can be read")
	l.create(service("late", six), service("both", func(s *corev1.Service) { s.Spec.IPFamilyPolicy = &dual }))
	l.has("late", "PoolEmpty")
	l.has("both", "PoolEmpty")
	for name, address := range map[string]string{"web": "2001:db8::10", "more": "2001:db8::11"} {
		if s := l.has(name, "Assigned", address); !strings.Contains(s.Status.Conditions[0].Message, "PoolInvalid") {
			t.Errorf("%s: %+v", name, s.Status.Conditions)
		}
	}
	change(`{addresses: ["2001:db8::10-2001:db8::2f"]}`)
	l.has("late", "Assigned", "2001:db8::12")
	l.has("web", "Assigned", "2001:db8::10")
	l.has("more", "Assigned", "2001:db8::11")
	l.stop(p)
}

// TestNodeInPool: a pool contains the address of a Node. No Service gets that address, and an Event
// of the pool reports it.
func TestNodeInPool(t *testing.T) {
	l := newLab(t)
	node, err := l.client.CoreV1().Nodes().Create(l.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "203.0.113.0"},
		{Type: corev1.NodeHostName, Address: "203.0.113.1"}}
	if _, err := l.client.CoreV1().Nodes().UpdateStatus(l.ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.createPool("public", `{addresses: [203.0.113.0/30]}`)
	p := l.controller(build(t))
	defer l.stop(p)
	l.create(service("a"), service("asks", annotated("metallb.io/loadBalancerIPs", "203.0.113.0")))
	l.has("a", "Assigned", "203.0.113.1")
	l.has("asks", "AddressTaken")
	l.waitForEvent("AddressPool", "public", "NodeAddress", "203.0.113.0 is an address of Node worker")
	if err := l.client.CoreV1().Nodes().Delete(l.ctx, "worker", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.has("asks", "Assigned", "203.0.113.0")
}

// TestPoolsOfMetalLB: MetalLB's pools are used, also if its kind is installed later, and an Event
// names unsupported fields. Pools in other namespaces, which MetalLB does not read either, are not
// used, whatever their names are.
func TestPoolsOfMetalLB(t *testing.T) {
	l := newLab(t)
	p := l.controller(build(t))
	l.create(service("early"))
	l.has("early", "NoPool")
	clustertest.Kinds(l.ctx, t, l.Cluster, "testdata/ipaddresspools.yaml")
	l.namespace("a")
	l.namespace("metallb-system")
	kind := schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools"}
	for _, test := range []struct{ namespace, name, spec string }{
		{"a", "first", `{addresses: [198.51.100.0/24]}`},
		{"a", "another", `{addresses: [198.51.100.0/24]}`},
		{"metallb-system", "first", `{addresses: [192.0.2.10-192.0.2.20], autoAssign: true, serviceAllocation: {priority: 3, namespaces: ` +
			`[default]}, future: 1}`},
		{"metallb-system", "broken", `{addresses: [192.0.2.300/24]}`},
	} {
		o := pool(t, test.name, test.spec)
		o.SetAPIVersion("metallb.io/v1beta1")
		o.SetKind("IPAddressPool")
		api := l.dynamic.Resource(kind).Namespace(test.namespace)
		if _, err := api.Create(l.ctx, o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	l.has("early", "Assigned", "192.0.2.10")
	l.waitForEvent("IPAddressPool", "first", "FieldNotDone", "spec.future")
	l.waitForEvent("IPAddressPool", "broken", "PoolInvalid", "192.0.2.300/24")
	l.create(service("late", annotated("metallb.io/address-pool", "another")))
	l.has("late", "UnknownPool")
	l.stop(p)
}

// TestPoolsOfMetalLBAreNotListed: MetalLB's kind is served but may not be listed, for example
// because the Role was deleted with its namespace. A leader gives addresses from the other pools,
// and Services keep addresses that no readable pool has.
func TestPoolsOfMetalLBAreNotListed(t *testing.T) {
	l := newLab(t)
	clustertest.Kinds(l.ctx, t, l.Cluster, "testdata/ipaddresspools.yaml")
	l.namespace("metallb-system")
	o := pool(t, "theirs", `{addresses: [198.51.100.0/24]}`)
	o.SetAPIVersion("metallb.io/v1beta1")
	o.SetKind("IPAddressPool")
	kind := schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools"}
	_, err := l.dynamic.Resource(kind).Namespace("metallb-system").Create(l.ctx, o, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.createPool("main", `{addresses: [192.0.2.0/24]}`)
	theirs := annotated("metallb.io/address-pool", "theirs")
	l.create(service("has", theirs))
	s := l.get("has")
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.7"}}
	if _, err := l.client.CoreV1().Services("default").UpdateStatus(l.ctx, s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.create(service("new"), service("asks", theirs))
	all := rights(t)
	few := slices.DeleteFunc(slices.Clone(all), func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.APIGroups, "metallb.io")
	})
	binary := build(t)
	p := l.controllerWith(few, binary)
	l.has("new", "Assigned", "192.0.2.0")
	l.has("asks", "PoolInvalid")
	if s := l.has("has", "Assigned", "198.51.100.7"); !strings.Contains(s.Status.Conditions[0].Message,
		"it stays until pool metallb-system/* can be read") {
		t.Errorf("%+v", s.Status.Conditions)
	}
	if _, err := l.ServiceAccount(l.ctx, "sluice-system", "controller", all...); err != nil {
		t.Fatal(err)
	}
	l.has("asks", "Assigned", "198.51.100.0")
	if s := l.has("has", "Assigned", "198.51.100.7"); strings.Contains(s.Status.Conditions[0].Message, "PoolInvalid") {
		t.Errorf("with the right to list them: %+v", s.Status.Conditions)
	}
	l.stop(p)
}
