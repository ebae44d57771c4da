package conformance

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/test/bed/cluster"
)

// Case shows rows of the document.
type Case struct {
	Rows  []string // "Section/first column", see rows.go
	Name  string
	steps []*step

	all *cases
}

// step is a change and what holds after it.
type step struct {
	name    string
	put     []cluster.Object
	delete  []cluster.Object
	refuse  []cluster.Object // objects that the API server must reject
	alone   bool             // after all others: it changes state that they share
	options string           // more of Sluice's configuration; kube-proxy has no part in it
	probes  []*probe
}

// cases is the list of all cases. The Services in it are numbered, for addresses of their own.
type cases struct {
	cases    []*Case
	services int
}

// add begins a case of rows, separated by " + ".
func (b *cases) add(rows, name string) *Case {
	c := &Case{Rows: strings.Split(rows, " + "), Name: name, steps: []*step{{}}, all: b}
	b.cases = append(b.cases, c)
	return c
}

func (c *Case) last() *step { return c.steps[len(c.steps)-1] }

// then begins a further step.
func (c *Case) then(name string) *Case {
	c.steps = append(c.steps, &step{name: name})
	return c
}

// with begins a further step, under a configuration.
func (c *Case) with(options string) *Case {
	c.then(strings.TrimSpace(strings.ReplaceAll(options, "\n", "; ")))
	c.last().options, c.last().alone = options, true
	return c
}

// put writes objects in this step; of two of one name the later.
func (c *Case) put(objects ...cluster.Object) {
	s := c.last()
	for _, o := range objects {
		s.put = slices.DeleteFunc(s.put, func(p cluster.Object) bool {
			return reflect.TypeOf(p) == reflect.TypeOf(o) && p.GetNamespace() == o.GetNamespace() &&
				p.GetName() == o.GetName()
		})
		s.put = append(s.put, o)
	}
}

func (c *Case) refuse(o ...cluster.Object) { c.last().refuse = append(c.last().refuse, o...) }

// alone begins a further step that changes what all cases share.
func (c *Case) alone(name string) *Case {
	c.then(name)
	c.last().alone = true
	return c
}

func (c *Case) remove(o ...cluster.Object) { c.last().delete = append(c.last().delete, o...) }

// front is a Service of a case with what its clients need to know.
type front struct {
	*corev1.Service
	c *Case
	n int
}

// service makes a Service of both families with a load balancer's address of each, port
// 80 in TCP and UDP, a node port each, and changes it. Address and port numbers follow
// from its number, which every Service has its own.
func (c *Case) service(changes ...func(*front)) *front {
	f := c.bare(changes...)
	c.put(f.Service)
	return f
}

// bare makes a Service that is not written yet.
func (c *Case) bare(changes ...func(*front)) *front {
	n := c.all.services
	c.all.services++
	f := &front{c: c, n: n, Service: &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "conformance", Name: fmt.Sprintf("s%d", n)},
	}}
	policy := corev1.IPFamilyPolicyRequireDualStack
	f.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, IPFamilyPolicy: &policy,
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		ClusterIP:  f.clusterIP(false), ClusterIPs: []string{f.clusterIP(false), f.clusterIP(true)},
		Ports: []corev1.ServicePort{f.port("t", corev1.ProtocolTCP, 80, 0), f.port("u", corev1.ProtocolUDP, 80, 0)},
	}
	f.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: f.vipOf(false)}, {IP: f.vipOf(true)}}
	for _, change := range changes {
		change(f)
	}
	return f
}

// copy is the Service as it is now, for a later step to change.
func (f *front) copy(changes ...func(*front)) *front {
	g := &front{c: f.c, n: f.n, Service: f.DeepCopy()}
	for _, change := range changes {
		change(g)
	}
	f.c.put(g.Service)
	return g
}

const firstNodePort = 30100

func (f *front) nodePort(k int) uint16 { return uint16(firstNodePort + 4*f.n + k) }

func (f *front) port(name string, protocol corev1.Protocol, number int32, k int) corev1.ServicePort {
	p := corev1.ServicePort{Name: name, Protocol: protocol, Port: number, NodePort: int32(f.nodePort(k))}
	p.TargetPort.IntVal = 8080
	return p
}

func (f *front) vipOf(six bool) string { return numbered("198.18.%d.1", "2001:db8:f:%x::1", six, f.n) }
func (f *front) externalOf(six bool) string {
	return numbered("198.19.%d.1", "2001:db8:e:%x::1", six, f.n)
}
func (f *front) clusterIP(six bool) string {
	return numbered("10.100.%d.10", "fd00:96::%x:10", six, f.n)
}

func numbered(four, six string, isSix bool, n int) string {
	if isSix {
		// The service range of IPv6 has 16 bits.
		if strings.HasPrefix(six, "fd00:96") {
			return fmt.Sprintf("fd00:96::%x", 0x4000+16*n)
		}
		return fmt.Sprintf(six, n)
	}
	return fmt.Sprintf(four, n)
}

// dest is a frontend with a name for people.
type dest struct {
	name string
	to   netip.AddrPort
}

func destination(name, address string, port uint16) dest {
	a := netip.MustParseAddr(address)
	if a.Is6() {
		name += " (IPv6)"
	}
	if port != 80 && !strings.HasPrefix(name, "node port") {
		name += fmt.Sprintf(" port %d", port)
	}
	return dest{name, netip.AddrPortFrom(a, port)}
}

func (f *front) vip4() dest      { return destination("VIP", f.vipOf(false), 80) }
func (f *front) vip6() dest      { return destination("VIP", f.vipOf(true), 80) }
func (f *front) external4() dest { return destination("external IP", f.externalOf(false), 80) }
func (f *front) external6() dest { return destination("external IP", f.externalOf(true), 80) }
func (f *front) cluster4() dest  { return destination("ClusterIP", f.clusterIP(false), 80) }
func (f *front) cluster6() dest  { return destination("ClusterIP", f.clusterIP(true), 80) }
func (f *front) node4() dest     { return destination("node port", "10.71.0.1", f.nodePort(0)) }
func (f *front) node6() dest     { return destination("node port", "fd71::1", f.nodePort(0)) }

// node4Back is the node port at the address that nodeAddresses does not select.
func (f *front) node4Back() dest {
	return destination("node port of an address not selected", "10.72.0.1", f.nodePort(0))
}

// at is another port of the same address.
func (d dest) at(port uint16) dest {
	return destination(strings.TrimSuffix(d.name, " (IPv6)"), d.to.Addr().String(), port)
}

// slice writes a slice of each family, for all ports, with endpoints described as in
// endpoint. Later calls with the same suffix replace it.
func (f *front) slice(suffix string, endpoints ...string) *front {
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		f.c.put(f.sliceOf(suffix, family, endpoints...))
	}
	return f
}

func (f *front) sliceOf(suffix string, family corev1.IPFamily, endpoints ...string) *discoveryv1.EndpointSlice {
	var list []discoveryv1.Endpoint
	for _, e := range endpoints {
		list = append(list, endpoint(e, family == corev1.IPv6Protocol))
	}
	return cluster.NewSlice(f.Service, strings.ToLower(string(family))+suffix, family, list...)
}

// endpoint reads "b0 @NODE WORD...": a backend (b0, b1, b2: on the nodes n0, n1, n2;
// pod-b0: b0 by its pod's address; local: the gateway itself) with words:
//
//	notready    neither ready nor serving        term  terminating and serving
//	gone        terminating, not serving         unserving  ready, and not serving
//	bare        no conditions                    nonode  without nodeName
//	zone=Z      hint for a zone                  node=N  hint for a node
//	inzone=Z    the zone that it is in           IP      a second address
func endpoint(text string, six bool) discoveryv1.Endpoint {
	words := strings.Fields(text)
	e := cluster.NewEndpoint("", backendAddress(words[0], six))
	node := "n" + words[0][len(words[0])-1:]
	if words[0] == "local" {
		node = gatewayNode
	}
	e.NodeName = &node
	is := func(ready, serving, terminating bool) {
		e.Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
	}
	hints := func() *discoveryv1.EndpointHints {
		if e.Hints == nil {
			e.Hints = &discoveryv1.EndpointHints{}
		}
		return e.Hints
	}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch {
		case strings.HasPrefix(w, "@"):
			n := w[1:]
			e.NodeName = &n
		case w == "notready":
			is(false, false, false)
		case w == "term":
			is(false, true, true)
		case w == "gone":
			is(false, false, true)
		case w == "unserving":
			is(true, false, false)
		case w == "serving":
			is(false, true, false)
		case w == "bare":
			e.Conditions = discoveryv1.EndpointConditions{}
		case w == "nonode":
			e.NodeName = nil
		case key == "zone":
			hints().ForZones = append(hints().ForZones, discoveryv1.ForZone{Name: value})
		case key == "node":
			hints().ForNodes = append(hints().ForNodes, discoveryv1.ForNode{Name: value})
		case key == "inzone":
			e.Zone = &value
		default:
			e.Addresses = append(e.Addresses, backendAddress(w, six).String())
		}
	}
	return e
}

// backendAddress is where a backend's server listens in the topology of topo.New.
func backendAddress(name string, six bool) netip.Addr {
	four, six6 := "", ""
	switch name {
	case "local":
		four, six6 = "10.71.0.1", "fd71::1"
	case "b0", "b1", "b2":
		// The last byte is 100 and on, in both families.
		four, six6 = "10.72.0.10"+name[1:], fmt.Sprintf("fd72::%x", 100+int(name[1]-'0'))
	case "pod-b0", "pod-b1", "pod-b2":
		four, six6 = "10.74.0.10"+name[5:], fmt.Sprintf("fd74::%x", 100+int(name[5]-'0'))
	default:
		four, six6 = name, name
	}
	if six {
		return netip.MustParseAddr(six6)
	}
	return netip.MustParseAddr(four)
}

// ID is the case's name among all.
func (c *Case) ID() string { return c.Rows[0] + "/" + c.Name }
