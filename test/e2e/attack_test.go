//go:build root

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sluice.dev/sluice/control/k8s"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/cluster/clustertest"
	"sluice.dev/sluice/test/bed/topo"
)

const (
	tenantNamespace = "tenant"
	evilIP          = "203.0.113.66"
	// sourceIP is an address that the gateway translates to and that no interface has.
	sourceIP = "198.18.7.7"
	// The attack on shared tables: more frontends than a gateway has room for.
	greedyServices, greedyIPs, greedyPorts = 54, 128, 64
)

// attack is a tenant who may write Services and EndpointSlices in his own namespace and nothing
// else, and a victim in another one whose connections are open all the time.
type attack struct {
	*lab
	t       *testing.T
	api     *realTenant
	tenant  *kubernetes.Clientset
	own     *ownTraffic
	flows   *topo.Flows
	ports   []uint16 // of the daemon's connections to its API server
	written []cluster.Object
	heard   int
}

// TestTenantAttacks tries, on a kube-apiserver and by an account that RBAC confines to one
// namespace, what a tenant can write: of the node, of others' Services and of the gateway's own
// connection nothing is taken, and what is refused is reported in the tenant's namespace.
func TestTenantAttacks(t *testing.T) {
	clustertest.Need(t)
	a := newAttack(t)
	for _, step := range []struct {
		name string
		try  func()
	}{
		{"rights", a.rights}, {"addresses of the node", a.nodeAddresses}, {"ports of the node", a.hostPorts},
		{"addresses of a client", a.clientAddress}, {"addresses that nobody can have", a.illegalAddresses},
		{"control characters", a.controlCharacters},
		{"shared tables", a.sharedTables},
	} {
		began := time.Now()
		step.try()
		a.unharmed(step.name)
		a.withdraw()
		a.unharmed("after " + step.name)
		t.Logf("%s: %.1f s", step.name, time.Since(began).Seconds())
		if t.Failed() {
			t.Fatalf("%s: the attack succeeded", step.name)
		}
	}
	a.flows.Stop()
}

func newAttack(t *testing.T) *attack {
	t.Helper()
	api := &realTenant{}
	l := tenantLab(t, api, "snat: {addresses: ["+sourceIP+"]}\n")
	a := &attack{lab: l, t: t, api: api, own: l.serveOwn(t)}
	user, err := api.cluster.Tenant(l.ctx, tenantNamespace, "author",
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"*"}},
		rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"},
			Verbs: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	config := api.cluster.RESTConfig(user)
	config.WarningHandler = rest.NoWarnings{} // external IPs are deprecated
	if a.tenant, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	// The client has no more ports for its connections than the tenant can name.
	err = l.Clients[0].SetSysctl("net/ipv4/ip_local_port_range", fmt.Sprintf("%d %d", localFirst, localLast))
	if err != nil {
		t.Fatal(err)
	}
	victim := apiService("shop", "")
	victim.Spec.ClusterIP, victim.Spec.ClusterIPs = "", nil
	api.put(t, victim, apiSlice("shop", l.Backends[0]))
	a.hears()
	a.flows, err = l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(apiVIP, webPort)}, Flows: 20,
		Interval: 100 * time.Millisecond, Lifetime: 10 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if a.ports = a.connections(); len(a.ports) == 0 {
		t.Fatal("the daemon has no connection to its API server")
	}
	a.unharmed("before")
	return a
}

// hears has the victim write a Service, the youngest of all, which must be served.
func (a *attack) hears() {
	a.t.Helper()
	a.heard++
	a.hear(a.t, a.api, fmt.Sprint("younger-", a.heard), byte(100+a.heard))
}

// unharmed checks all that is not the tenant's.
func (a *attack) unharmed(when string) {
	a.t.Helper()
	a.hears()
	a.own.check(a.t, when)
	if s := a.outageState(); s.failing > 0 {
		a.t.Errorf("%s: %d sources fail", when, s.failing)
	}
	if now := a.connections(); !slices.Equal(now, a.ports) {
		a.t.Errorf("%s: the connections to the API server have ports %v, had %v", when, now, a.ports)
	}
	if n := a.flows.Broken(); n > 0 {
		a.t.Errorf("%s: %d of the victim's connections broke", when, n)
	}
}

// connections lists the local ports of the daemon's established connections to its API server.
func (a *attack) connections() (ports []uint16) {
	a.t.Helper()
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", a.gate.PID()))
	if err != nil {
		a.t.Fatal(err)
	}
	ip := a.Backends[1].Addr4().As4()
	slices.Reverse(ip[:]) // as a number of this machine, amd64 or arm64
	server := strings.ToUpper(hex.EncodeToString(ip[:])) + fmt.Sprintf(":%04X", a.api.cluster.Port())
	for s := bufio.NewScanner(bytes.NewReader(table)); s.Scan(); {
		f := strings.Fields(s.Text()) // sl local_address rem_address st (proc_net_tcp.rst)
		if len(f) < 4 || f[2] != server || f[3] != "01" {
			continue
		}
		_, port, _ := strings.Cut(f[1], ":")
		n, err := strconv.ParseUint(port, 16, 16)
		if err != nil {
			a.t.Fatal(err)
		}
		ports = append(ports, uint16(n))
	}
	slices.Sort(ports)
	return ports
}

// write creates objects as the tenant, in his namespace; what the status of a Service has, a
// controller of the cluster writes for him. It reports what the API server refuses as invalid.
func (a *attack) write(o cluster.Object) (refused error) {
	a.t.Helper()
	o.SetNamespace(tenantNamespace)
	var err error
	switch o := o.(type) {
	case *corev1.Service:
		var created *corev1.Service
		created, err = a.tenant.CoreV1().Services(tenantNamespace).Create(a.ctx, o, metav1.CreateOptions{})
		if err == nil && len(o.Status.LoadBalancer.Ingress) > 0 {
			created.Status = o.Status
			_, err = a.api.cluster.Client().CoreV1().Services(tenantNamespace).UpdateStatus(a.ctx, created,
				metav1.UpdateOptions{})
		}
	case *discoveryv1.EndpointSlice:
		_, err = a.tenant.DiscoveryV1().EndpointSlices(tenantNamespace).Create(a.ctx, o, metav1.CreateOptions{})
	}
	if err != nil && !apierrors.IsInvalid(err) {
		a.t.Fatalf("%T %s: %v", o, o.GetName(), err)
	}
	a.written = append(a.written, o)
	return err
}

func (a *attack) mustWrite(objects ...cluster.Object) {
	a.t.Helper()
	for _, o := range objects {
		if err := a.write(o); err != nil {
			a.t.Fatalf("%T %s: %v", o, o.GetName(), err)
		}
	}
}

// withdraw deletes what the tenant wrote.
func (a *attack) withdraw() {
	a.t.Helper()
	a.api.remove(a.t, a.written...)
	a.written = nil
}

// evil makes a Service at evilIP with endpoints that are other than pods.
func evil(name string, port int32, addresses ...string) (*corev1.Service, *discoveryv1.EndpointSlice) {
	s := apiService(name, "")
	s.Spec.Type, s.Spec.ExternalIPs, s.Spec.Ports[0].Port = corev1.ServiceTypeClusterIP, []string{evilIP}, port
	s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Status = "", nil, corev1.ServiceStatus{}
	slice, node := apiSlice(name), gatewayNode
	*slice.Ports[0].Port = port
	for _, ip := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: &node})
	}
	return s, slice
}

// reports waits for an Event in the tenant's namespace about one of his objects, whose name begins
// like that.
func (a *attack) reports(kind, name, reason, text string) {
	a.t.Helper()
	what := fmt.Sprintf("an Event %s about %s %s that says %q", reason, kind, name, text)
	a.eventually(60*time.Second, what, func() bool {
		return slices.ContainsFunc(a.events(), func(e eventsv1.Event) bool {
			return e.Regarding.Kind == kind && strings.HasPrefix(e.Regarding.Name, name) && e.Reason == reason &&
				strings.Contains(e.Note, text)
		})
	})
	object := fmt.Sprintf("%s %s/%s", kind, tenantNamespace, name)
	if !slices.ContainsFunc(a.problems(), func(p status.ProblemView) bool {
		return strings.HasPrefix(p.Object, object) && strings.Contains(p.Message, text)
	}) {
		a.t.Errorf("no problem of %s says %q", object, text)
	}
}

func (a *attack) events() []eventsv1.Event {
	a.t.Helper()
	list, err := a.api.cluster.Client().EventsV1().Events(tenantNamespace).List(a.ctx, metav1.ListOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(e eventsv1.Event) bool { return e.ReportingController != k8s.Controller })
}

func (a *attack) problems() []status.ProblemView {
	a.t.Helper()
	s, err := a.gate.Client.Status(a.ctx, false)
	if err != nil {
		a.t.Fatal(err)
	}
	return s.Problems
}

// reached reports whether a client gets an answer at one of the tenant's frontends.
func (a *attack) reached(to netip.AddrPort) bool {
	a.t.Helper()
	return firstLine(a.t, a.Clients[0], to, "GET / HTTP/1.0\r\n\r\n") != ""
}

// rights: the tenant is no more than the test says.
func (a *attack) rights() {
	s, slice := evil("elsewhere", webPort, a.Backends[0].Addr4().String())
	ctx, k := a.ctx, a.tenant
	_, service := k.CoreV1().Services("default").Create(ctx, s, metav1.CreateOptions{})
	_, endpoints := k.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{})
	_, node := k.CoreV1().Nodes().Get(ctx, gatewayNode, metav1.GetOptions{})
	s.Namespace = tenantNamespace
	_, status := k.CoreV1().Services(tenantNamespace).UpdateStatus(ctx, s, metav1.UpdateOptions{})
	for what, err := range map[string]error{"a Service of another namespace": service,
		"a slice of another namespace": endpoints, "the Node": node, "a Service's status": status} {
		if !apierrors.IsForbidden(err) {
			a.t.Errorf("%s: %v, want it forbidden", what, err)
		}
	}
}

// nodeAddresses: external IPs, and addresses in the status, that are the node's, with every port
// that its own connections can have and those of its listeners.
func (a *attack) nodeAddresses() {
	g := a.Gateway
	ips := []string{g.Addr4().String(), g.Interfaces[1].Addr4.Addr().String(), "192.0.0.1"}
	a.mustWrite(takeNode(ips, a.Backends[0])...)
	free, slice := evil("free", 8082, a.Backends[0].Addr4().String())
	free.Spec.ExternalIPs, *slice.Ports[0].Port = ips, backendPort
	a.mustWrite(free, slice)
	a.hears()
	if to := netip.AddrPortFrom(g.Addr4(), 8082); a.reached(to) {
		a.t.Errorf("an external IP is served at the node's own %v", to)
	}
	for _, name := range []string{"external-tcp", "external-udp", "external-listeners", "free"} {
		a.reports("Service", name, "AddressNotAllowed", g.Addr4().String())
	}
}

// hostPorts: an EndpointSlice that names the kubelet's port at each of the node's addresses.
func (a *attack) hostPorts() {
	g := a.Gateway
	any4 := netip.IPv4Unspecified()
	for name, port := range map[string]uint16{"kubelet": kubeletPort, "open": localBackendPort} {
		s, err := g.ServeOn(name, port, any4)
		if err != nil {
			a.t.Fatal(err)
		}
		defer s.Close()
	}
	for i, ip := range []string{g.Addr4().String(), g.Interfaces[1].Addr4.Addr().String(), "192.0.0.1"} {
		name := fmt.Sprint("kubelet-", i)
		s, slice := evil(name, kubeletPort, ip)
		a.mustWrite(s, slice)
		a.hears()
		if a.reached(at(evilIP, kubeletPort)) {
			a.t.Errorf("%s:%d of the node is reached from outside", ip, kubeletPort)
		}
		a.reports("EndpointSlice", slice.Name, "NotServed", "10250/TCP")
		a.withdraw()
	}
	s, slice := evil("open", localBackendPort, g.Addr4().String())
	a.mustWrite(s, slice)
	a.hears()
	if !a.reached(at(evilIP, localBackendPort)) {
		a.t.Error("a port of the node that is for clients is not served")
	}
}

// clientAddress: external IPs that are a client's, with every port that its connections can have.
// What the client sends is no frontend's answer, and is served.
func (a *attack) clientAddress() {
	for _, o := range takeNode([]string{a.Clients[0].Addr4().String()}, a.Backends[0]) {
		if !strings.HasPrefix(o.GetName(), "status-") {
			a.mustWrite(o)
		}
	}
}

// illegalAddresses: endpoints and frontends that are no unicast address, or the gateway's own.
func (a *attack) illegalAddresses() {
	tried, accepted := 0, 0
	var names []string // of Services and slices that the API server accepted
	write := func(s *corev1.Service, slice *discoveryv1.EndpointSlice, at cluster.Object, text string) {
		tried++
		if a.write(s) != nil || a.write(slice) != nil {
			return
		}
		accepted++
		kind := "Service"
		if at == slice {
			kind = "EndpointSlice"
		}
		names = append(names, kind+" "+at.GetName()+" "+text)
	}
	backend := a.Backends[0].Addr4().String()
	illegal := []string{"0.0.0.0", "0.1.2.3", "127.0.0.1", "169.254.169.254", "224.0.0.1", "239.1.2.3",
		"255.255.255.255"}
	for i, ip := range append(slices.Clone(illegal), sourceIP) {
		s, slice := evil(fmt.Sprint("endpoint-", i), int32(9000+i), ip, backend)
		write(s, slice, slice, ip)
		external, slice := evil(fmt.Sprint("external-", i), int32(20000+i), backend)
		external.Spec.ExternalIPs = []string{ip}
		write(external, slice, external, ip)
		inStatus, slice := evil(fmt.Sprint("status-", i), int32(20100+i), backend)
		inStatus.Spec.ExternalIPs, inStatus.Spec.Type = nil, corev1.ServiceTypeLoadBalancer
		inStatus.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip}}
		write(inStatus, slice, inStatus, ip)
	}
	a.t.Logf("the API server accepted %d of %d", accepted, tried)
	if accepted < len(illegal)+3 { // the status takes any address
		a.t.Errorf("the API server accepted %d of %d, the test tries nothing", accepted, tried)
	}
	for _, n := range names {
		f := strings.Fields(n)
		reason := "NotServed"
		if f[0] == "Service" && f[2] == sourceIP {
			reason = "PortClash"
		}
		a.reports(f[0], f[1], reason, f[2])
	}
	all, err := a.gate.Client.Services(a.ctx)
	if err != nil {
		a.t.Fatal(err)
	}
	for _, v := range all {
		for _, f := range v.Frontends {
			ip := netip.MustParseAddrPort(f.Address).Addr().String()
			if f.Kind != "NodePort" && (ip == sourceIP || slices.Contains(illegal, ip)) {
				a.t.Errorf("Service %s/%s is served at %s", v.Namespace, v.Name, f.Address)
			}
		}
	}
	backends, err := a.gate.Client.Backends(a.ctx)
	if err != nil {
		a.t.Fatal(err)
	}
	for i := range backends {
		if ip := backends[i].Address.Addr().String(); ip == sourceIP || slices.Contains(illegal, ip) {
			a.t.Errorf("%s is a backend", ip)
		}
	}
}

// controlCharacters: texts that move a terminal's cursor, forge lines and turn text around, in all
// fields that the API server accepts them in. None comes out as it was.
func (a *attack) controlCharacters() {
	const text = "\x1b]0;owned\x07\x1b[2Ja\r\nproblem: none\u202egnp.\u009b31m"
	backend := a.Backends[0].Addr4().String()
	accepted := map[string]bool{}
	try := func(field string, change func(*corev1.Service, *discoveryv1.EndpointSlice)) {
		s, slice := evil("text-"+strings.ToLower(field), int32(9100+len(a.written)), backend)
		change(s, slice)
		accepted[field] = a.write(s) == nil && a.write(slice) == nil
	}
	value := text
	try("service", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
		s.Annotations = map[string]string{"sluice.dev/weights": text, "sluice.dev/scheduler": text,
			"sluice.dev/limit-connections": text, "other": text}
	})
	try("slice", func(_ *corev1.Service, slice *discoveryv1.EndpointSlice) {
		slice.Annotations = map[string]string{"sluice.dev/weights": text,
			corev1.EndpointsLastChangeTriggerTime: text}
	})
	try("zone", func(_ *corev1.Service, slice *discoveryv1.EndpointSlice) { slice.Endpoints[0].Zone = &value })
	try("hint", func(_ *corev1.Service, slice *discoveryv1.EndpointSlice) {
		slice.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: text}}}
	})
	try("target", func(_ *corev1.Service, slice *discoveryv1.EndpointSlice) {
		slice.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: text, Namespace: text, Name: text}
	})
	try("node", func(_ *corev1.Service, slice *discoveryv1.EndpointSlice) { slice.Endpoints[0].NodeName = &value })
	try("hostname", func(_ *corev1.Service, slice *discoveryv1.EndpointSlice) { slice.Endpoints[0].Hostname = &value })
	try("port", func(s *corev1.Service, slice *discoveryv1.EndpointSlice) {
		s.Spec.Ports[0].Name, slice.Ports[0].Name = text, &value
	})
	try("name", func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Name = text })
	a.t.Logf("the API server accepted control characters in: %v", accepted)
	if !accepted["service"] || !accepted["slice"] {
		a.t.Fatal("the API server refuses annotations, so nothing is tried")
	}
	a.reports("Service", "text-service", "ServedDifferently", "owned")
	a.reports("EndpointSlice", "text-slice-x", "ServedDifferently", "owned")
	a.printable()
}

// printable checks what people and programs read.
func (a *attack) printable() {
	a.t.Helper()
	check := func(where, text string) {
		if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			a.t.Errorf("%s is not printable: %.80q", where, text[max(0, i-40):])
		}
		if strings.Contains(text, "\nproblem: none") {
			a.t.Errorf("%s has a line that the tenant wrote", where)
		}
	}
	for _, e := range a.events() {
		check("an Event", e.Note)
	}
	for _, p := range a.problems() {
		check("a problem", p.Object+p.Field+p.Message)
	}
	check("the log", a.gate.Log())
	for _, command := range []string{"status", "services", "backends"} {
		ctx, cancel := context.WithTimeout(a.ctx, 10*time.Second)
		out, err := a.gate.Command(ctx, command)
		cancel()
		if err != nil {
			a.t.Errorf("sluice %s: %v", command, err)
		}
		check("sluice "+command, strings.ReplaceAll(out, "\t", " "))
	}
	check("/metrics", page(a.t, a.Clients[0], "http://"+a.Gateway.Addr4().String()+":9470/metrics"))
}

// sharedTables: Services with more frontends than there is room for, each as large as one may be.
func (a *attack) sharedTables() {
	for i := range greedyServices {
		s, _ := evil(fmt.Sprintf("greedy-%02d", i), 1, "")
		s.Spec.ExternalIPs, s.Spec.Ports = nil, nil
		for n := range greedyIPs {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("100.%d.%d.1", 64+i, n))
		}
		for port := range int32(greedyPorts) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", port), Port: 1 + port})
		}
		a.mustWrite(s)
	}
	a.hears()
	a.reports("Service", "greedy-", "NoRoom", "proxy.namespaceShare")
	all, err := a.gate.Client.Services(a.ctx)
	if err != nil {
		a.t.Fatal(err)
	}
	frontends := 0
	for i := range all {
		if all[i].Namespace == tenantNamespace {
			frontends += len(all[i].Frontends)
		}
	}
	a.t.Logf("the tenant has %d of %d frontends", frontends, greedyServices*greedyIPs*greedyPorts)
	if frontends == 0 {
		a.t.Error("the tenant has nothing, not even his share")
	}
}
