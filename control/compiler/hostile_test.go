package compiler_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/files"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// maxProblemsText bounds what the Problems of one object may fill of logs, Events and the status.
const maxProblemsText = 32 << 10

// hostile is a tenant's objects, which are read beside goods. The problems of these objects must
// have the wanted words, and an object without wanted words must have no problem.
type hostile struct {
	name    string
	objects []runtime.Object
	want    []string
	// frontends and backends are those that the objects have all the same.
	frontends, backends int
}

// hostileTenant is a compiler with the good objects, into which a tenant writes.
type hostileTenant struct {
	t        *testing.T
	tracker  *tracker.Tracker
	compiler *compiler.Compiler
	alone    string
	facts    []byte
	health   []compiler.HealthCheck
}

func newHostileTenant(t *testing.T) *hostileTenant {
	cfg := controltest.Config()
	cfg.ClusterIPs, cfg.ClusterCIDRs = true, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
	cfg.LocalAddresses = cfg.NodeAddresses[:1]
	cfg.SNAT6 = []header.Addr{header.AddrFrom(netip.MustParseAddr("2001:db8::20"))}
	cfg.SNAT4 = append(cfg.SNAT4, header.AddrFrom4([4]byte{192, 0, 2, 30}))
	cfg.MaxFrontends, cfg.MaxAddrs, cfg.MaxSources, cfg.NamespaceShare = 65_536, 65_536, 65_536, 50
	h := &hostileTenant{t: t, tracker: tracker.New(), compiler: compiler.New(cfg)}
	var batch tracker.Batch
	if _, err := files.Decode(objects.Source{Kind: "good"}, []byte(goods), &batch); err != nil {
		t.Fatal(err)
	}
	h.tracker.Apply(&batch)
	if problems := h.compile(); len(problems) > 0 {
		t.Fatal(problems)
	}
	h.alone, h.facts, h.health = h.all(), h.compiler.Facts("good"), h.compiler.HealthChecks()
	return h
}

func (h *hostileTenant) compile() []objects.Problem {
	s, problems, _ := h.compiler.Compile(h.tracker.Changes())
	h.compiler.Release(s.Generation)
	return h.tracker.Locate(problems)
}

func (h *hostileTenant) all() string { return describe(h.compiler.Snapshot(), h.compiler.Problems()) }

var hostileSource = objects.Source{Kind: "hostile"}

// run reads the objects of a row, and deletes them again.
func (h *hostileTenant) run(row *hostile) {
	t := h.t
	var batch tracker.Batch
	for _, o := range row.objects {
		batch.Upsert(hostileSource, o)
	}
	h.tracker.Apply(&batch)
	problems := h.compile()
	if got := h.compiler.Facts("good"); !bytes.Equal(got, h.facts) {
		t.Errorf("the good Services are not what they are alone:\n%s", cmp.Diff(strings.Split(h.alone, "\n"),
			strings.Split(h.all(), "\n")))
	}
	if got := h.compiler.HealthChecks(); !cmp.Equal(got, h.health) {
		t.Errorf("health checks are %+v, alone %+v", got, h.health)
	}
	h.checkProblems(row, problems)
	h.checkTable(row)
	fresh, freshProblems, _ := h.compiler.Full(h.tracker.State())
	if got, want := h.all(), describe(fresh, freshProblems); got != want {
		t.Errorf("incremental (+) against full (-):\n%s", cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")))
	}
	if d := h.compiler.CheckAll(h.tracker); d != "" {
		t.Error(d)
	}
	for _, o := range row.objects {
		h.tracker.Delete(hostileSource, idOf(o))
	}
	if problems = h.compile(); len(problems) > 0 || h.all() != h.alone {
		t.Errorf("after it is deleted: %v\n%s", problems, cmp.Diff(h.alone, h.all()))
	}
}

// checkProblems: each is about an object of the row, in the words of the row, printable and short.
func (h *hostileTenant) checkProblems(row *hostile, problems []objects.Problem) {
	mine := map[objects.ObjectID]bool{}
	for _, o := range row.objects {
		id := idOf(o)
		mine[objects.MakeObjectID(id.Kind, id.Namespace, id.Name)] = true
	}
	var all strings.Builder
	for _, p := range problems {
		line := p.String()
		if !mine[p.Object] {
			h.t.Errorf("of an object that did nothing: %.300q", line)
		}
		if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) || !utf8.ValidString(line) {
			h.t.Errorf("not printable: %.300q", line)
		}
		all.WriteString(line + "\n")
	}
	text := all.String()
	if len(text) > maxProblemsText {
		h.t.Errorf("%d problems of %d bytes", len(problems), len(text))
	}
	for _, want := range row.want {
		if !strings.Contains(text, want) {
			h.t.Errorf("no problem says %q: %.2000s", want, text)
		}
	}
	if len(row.want) == 0 && text != "" {
		h.t.Errorf("problems: %.2000s", text)
	}
}

func (h *hostileTenant) checkTable(row *hostile) {
	s, frontends, backends := h.compiler.Snapshot(), 0, 0
	s.Frontends(func(f *services.Frontend) bool {
		if f.Service.Namespace != "good" {
			frontends++
		}
		// These are labels of metrics, and keys of the status.
		for _, name := range []string{f.Service.Namespace, f.Service.Name, "x" + f.Service.PortName} {
			if len(validation.IsDNS1123Subdomain(name)) > 0 {
				h.t.Errorf("a name in the table: %.300q", name)
			}
		}
		return true
	})
	s.Backends(func(b *services.Backend) bool {
		if illegal(b.Addr) || b.Port == 0 || atGateway(s, b) {
			h.t.Errorf("backend %+v", *b)
		}
		if s.Service(b.Service).Namespace != "good" {
			backends++
		}
		return true
	})
	s.Addrs(func(a header.Addr, _ services.AddrFlags) bool {
		if illegal(a) {
			h.t.Errorf("address %v", a)
		}
		return true
	})
	if frontends != row.frontends || backends != row.backends {
		h.t.Errorf("it has %d frontends and %d backends, want %d and %d", frontends, backends, row.frontends,
			row.backends)
	}
}

// TestHostileObjects reads a tenant's objects beside good ones. The good objects' part of the table
// stays the same, byte for byte, as without them.
func TestHostileObjects(t *testing.T) {
	for group, rows := range map[string][]hostile{
		"endpoint address": endpointAddresses(), "frontend address": frontendAddresses(),
		"annotations": hostileAnnotations(), "names": hostileNames(), "ports": hostilePorts(),
		"slices": hostileSlices(),
	} {
		t.Run(group, func(t *testing.T) {
			for i := range rows {
				t.Run(rows[i].name, func(t *testing.T) { newHostileTenant(t).run(&rows[i]) })
			}
		})
	}
}

// tenantService is a Service that is in order, with one frontend at its ClusterIP.
func tenantService(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "evil",
		CreationTimestamp: metav1.NewTime(time.Unix(2, 0))}}
	s.Spec.Type, s.Spec.ClusterIPs = corev1.ServiceTypeLoadBalancer, []string{"10.96.0.66"}
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}}
	if change != nil {
		change(s)
	}
	return s
}

// tenantSlice has two endpoints that are in order.
func tenantSlice(change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	name, port := "http", int32(8080)
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
		Ports:     []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.66.1"}}, {Addresses: []string{"10.0.66.2"}}}}
	s.Namespace, s.Name = "tenant", "evil-1"
	s.Labels = map[string]string{discoveryv1.LabelServiceName: "evil"}
	if change != nil {
		change(s)
	}
	return s
}

// unservable are addresses that no packet can be sent to, with the words of the problem.
var unservable = map[string]string{
	"0.0.0.0": "unspecified", "0.1.2.3": "0.0.0.0/8", "127.0.0.1": "loopback", "127.255.255.254": "loopback",
	"169.254.169.254": "link-local", "224.0.0.1": "multicast", "239.255.255.250": "multicast",
	"255.255.255.255": "broadcast",
	"::":              "unspecified", "::1": "loopback", "fe80::1": "link-local", "ff02::1": "multicast",
	"::192.0.2.1": "IPv4-compatible",
}

// unreadable are not addresses, or not of one family.
var unreadable = map[string]string{
	"::ffff:10.0.0.1": "IPv4-mapped", "::ffff:127.0.0.1": "IPv4-mapped", "fe80::1%eth0": "has a zone",
	"10.0.0.1\x1b[2J": "is not an IP address", "": "is not an IP address", "10.0.0.1\x00": "is not an IP address",
	"2130706433": "is not an IP address", strings.Repeat("1", 1<<20): "is not an IP address",
}

func endpointAddresses() (rows []hostile) {
	add := func(addr, why string, backends int) {
		rows = append(rows, hostile{name: fmt.Sprintf("%.30q", addr), want: []string{why}, frontends: 1,
			backends: backends, objects: []runtime.Object{
				tenantService(func(s *corev1.Service) {
					if strings.Contains(addr, ":") {
						s.Spec.ClusterIPs = []string{"2001:db8:96::66"}
					}
				}),
				tenantSlice(func(s *discoveryv1.EndpointSlice) {
					s.Endpoints[0].Addresses[0], s.Endpoints[1].Addresses[0] = addr, "10.0.66.2"
					if strings.Contains(addr, ":") {
						s.AddressType, s.Endpoints[1].Addresses[0] = discoveryv1.AddressTypeIPv6, "2001:db8:66::2"
					}
				})}})
	}
	for _, list := range []map[string]string{unservable, unreadable} {
		for addr, why := range list {
			add(addr, why, 1)
		}
	}
	add("192.0.2.20", "source address of this gateway", 1)
	add("2001:db8::20", "source address of this gateway", 1)
	for _, vip := range []string{"10.96.0.201", "203.0.113.200"} { // of a good Service, at its port
		rows = append(rows, hostile{name: vip + " port 80", want: []string{"is a frontend of Service good/plain"},
			frontends: 1, objects: []runtime.Object{tenantService(nil),
				tenantSlice(func(s *discoveryv1.EndpointSlice) {
					*s.Ports[0].Port, s.Endpoints = 80, s.Endpoints[:1]
					s.Endpoints[0].Addresses[0] = vip
				})}})
	}
	return rows
}

func frontendAddresses() (rows []hostile) {
	fields := map[string]func(*corev1.Service, string){
		"external IP": func(s *corev1.Service, a string) { s.Spec.ExternalIPs = []string{a, "203.0.113.66"} },
		"status": func(s *corev1.Service, a string) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: a}, {IP: "203.0.113.66"}}
		},
		"cluster IP": func(s *corev1.Service, a string) {
			s.Spec.ClusterIPs, s.Spec.ExternalIPs = []string{a}, []string{"203.0.113.66", "2001:db8:f::66"}
		},
	}
	add := func(field, addr string, frontends int, want ...string) {
		rows = append(rows, hostile{name: fmt.Sprintf("%s %.30q", field, addr), want: want, frontends: frontends,
			objects: []runtime.Object{tenantService(func(s *corev1.Service) { fields[field](s, addr) })}})
	}
	for addr, why := range unservable {
		add("external IP", addr, 2, why)
		add("status", addr, 2, why)
		add("cluster IP", addr, 1, why)
	}
	for addr, why := range unreadable {
		if addr != "" { // the same as none, in the status
			add("status", addr, 2, why)
		}
		add("external IP", addr, 2, why)
		add("cluster IP", addr, 0, why) // malformed: no API server has accepted it
	}
	// Addresses of the gateway and of others. A port at a source address of the gateway is served
	// where no reply comes to it.
	add("external IP", "192.0.2.10", 2, "is an address of this node")
	add("external IP", "192.0.2.20", 3)
	for _, field := range []string{"external IP", "status"} {
		add(field, "203.0.113.200", 2, "belongs to Service good/plain")
		add(field, "10.96.0.201", 2, "belongs to Service good/plain")
		rows = append(rows, hostile{name: field + " of a source, at its ports", frontends: 2,
			want: []string{"is in the range of source ports"},
			objects: []runtime.Object{tenantService(func(s *corev1.Service) {
				fields[field](s, "192.0.2.20")
				s.Spec.Ports[0].Port = 30_100
			})}})
	}
	// No interface has it, so replies come to all ports but the system's.
	for port, frontends := range map[int32]int{1023: 3, 1024: 2, 65_535: 2} {
		row := hostile{name: fmt.Sprint("external IP of a source that no interface has, port ", port),
			frontends: frontends, objects: []runtime.Object{tenantService(func(s *corev1.Service) {
				fields["external IP"](s, "192.0.2.30")
				s.Spec.Ports[0].Port = port
			})}}
		if frontends < 3 {
			row.want = []string{"192.0.2.30:", "is in the range of source ports (1024 to 65535)"}
		}
		rows = append(rows, row)
	}
	for _, endpoint := range []string{"100.64.77.1", "100.64.77.11"} { // of a good Service, at its ports
		rows = append(rows, hostile{name: "external IP " + endpoint, frontends: 3,
			objects: []runtime.Object{tenantService(func(s *corev1.Service) {
				s.Spec.Ports[0].Port = 8080
				fields["external IP"](s, endpoint)
			})}})
	}
	return rows
}
