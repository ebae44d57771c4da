package pools_test

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice.dev/sluice/allocate/pools"
)

// table is a file of lines that change an allocator or state an expected result. A line is
//
//	pool NAME [manual] [avoid-buggy] [priority=N] [namespaces=...] [labels=...] ADDRESSES...
//	pools                  the pools above replace those before
//	valid ADDRESSES...     what "allocate" may give
//	reset                  an allocator that knows nothing
//	assign SERVICE ADDRESSES [WORDS] -> ok or a Reason
//	allocate SERVICE FAMILIES [WORDS] -> ok or a Reason
//	release SERVICE [freed]
//	service [WORDS] -> ADDRESSES, none or keep [warn or told]
//	service deleted -> none
//	adopt [WORDS]          a Service whose status has addresses
//	reserve ADDRESSES SERVICE   only SERVICE may have them
//	pool-of SERVICE POOL   size POOL COUNTS   used POOL COUNTS
//	published TEST N VERBS     of MetalLB, with N cases: from here on lines of VERBS are cases
//	left-out N REASON          cases of it that are not in the file
//
// with WORDS such as port=tcp/80, as the functions below read them. Names of Services are unique,
// and of a namespace only where WORDS say so.
type table struct {
	*testing.T
	a      *pools.Allocator
	next   []*pools.Pool
	valid  []netip.Addr
	unique int
	cases  []*published // the last one is for the lines that follow
}

// published is a test of MetalLB: its number of cases, how many of them are lines here, and how
// many are left out, each with a reason.
type published struct {
	test           string
	cases, here    int
	leftOut        int
	reasons, verbs []string
}

// TestMetalLB has the published tests of MetalLB's allocator and controller as data. Each case is
// either a line or left out for a reason, and docs/metallb.md has the same counts.
func TestMetalLB(t *testing.T) {
	var all []*published
	t.Run("tables", func(t *testing.T) { all = runTables(t, "testdata/metallb/*.txt") })
	slices.SortFunc(all, func(a, b *published) int { return strings.Compare(a.test, b.test) })
	var rows strings.Builder
	total, here := 0, 0
	for _, p := range all {
		if p.cases != p.here+p.leftOut {
			t.Errorf("%s has %d cases: %d are here, and %d are left out", p.test, p.cases, p.here, p.leftOut)
		}
		total, here = total+p.cases, here+p.here
		fmt.Fprintf(&rows, "| `%s` | %d | %d | %s |\n", p.test, p.cases, p.here, strings.Join(p.reasons, "; "))
	}
	fmt.Fprintf(&rows, "| all | %d | %d | |\n", total, here)
	t.Logf("\n%s", rows.String())
	text, err := os.ReadFile("../../docs/metallb.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), rows.String()) {
		t.Error("docs/metallb.md has other rows")
	}
}

// TestTables runs Sluice's own tables.
func TestTables(t *testing.T) { runTables(t, "testdata/*.txt") }

// runTables runs the files, and returns the counts of MetalLB's tests.
func runTables(t *testing.T, pattern string) (all []*published) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", pattern, len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			b := &table{T: t, a: &pools.Allocator{}}
			for number, line := range readLines(t, file) {
				b.run(fmt.Sprintf("%s:%d", file, number), line)
			}
			all = append(all, b.cases...)
		})
	}
	return all
}

// readLines yields lines that are no comments, by number.
func readLines(t *testing.T, file string) func(yield func(int, string) bool) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return func(yield func(int, string) bool) {
		s := bufio.NewScanner(bytes.NewReader(text))
		for n := 1; s.Scan(); n++ {
			line := strings.TrimSpace(s.Text())
			if line != "" && line[0] != '#' && !yield(n, line) {
				return
			}
		}
	}
}

// TestServicesInAnyOrder runs the lines of whole Services in other orders: the result for a Service
// does not depend on an earlier one with the same name.
func TestServicesInAnyOrder(t *testing.T) {
	t.Parallel()
	const file, rounds = "testdata/metallb/services.txt", 100
	b := &table{T: t, a: &pools.Allocator{}}
	var services []string
	for _, line := range readLines(t, file) {
		if strings.HasPrefix(line, "service") {
			services = append(services, line)
			continue
		}
		b.run(file, line)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range rounds {
		random.Shuffle(len(services), func(i, j int) { services[i], services[j] = services[j], services[i] })
		for _, line := range services {
			b.run(file, line)
		}
	}
}

func (b *table) run(at, line string) {
	b.Helper()
	line, want, _ := strings.Cut(line, " -> ")
	words := strings.Fields(line)
	verb, words := words[0], words[1:]
	if n := len(b.cases); n > 0 && slices.Contains(b.cases[n-1].verbs, verb) {
		b.cases[n-1].here++
	}
	switch verb {
	case "published":
		b.cases = append(b.cases, &published{test: words[0], cases: number(b.T, at, words[1]), verbs: words[2:]})
	case "left-out":
		p := b.cases[len(b.cases)-1]
		p.leftOut += number(b.T, at, words[0])
		p.reasons = append(p.reasons, strings.Join(words[1:], " "))
	case "pool":
		b.pool(at, words)
	case "pools":
		b.a.SetPools(b.next)
		b.next = nil
	case "valid":
		b.valid = addresses(b.T, at, strings.Join(words, ","))
	case "reset":
		b.a = &pools.Allocator{}
	case "release":
		if freed := b.a.Forget("/" + words[0]); len(words) > 1 && !freed {
			b.Errorf("%s: %s: nothing was freed", at, line)
		}
	case "assign", "allocate":
		b.request(at, line, verb, words, want)
	case "service":
		b.service(at, line, words, want)
	case "adopt":
		s, namespaceLabels := newService(b.T, at, words)
		b.a.Adopt(s, namespaceLabels)
	case "reserve":
		b.a.Reserve("other", "somebody else", "/"+words[1], addresses(b.T, at, words[0]))
	case "pool-of":
		if _, pool := b.a.Claimed("/" + words[0]); pool != words[1] && (pool != "" || words[1] != "none") {
			b.Errorf("%s: %s: is in pool %q", at, line, pool)
		}
	case "size", "used":
		b.count(at, line, verb, words)
	default:
		b.Fatalf("%s: unknown line %q", at, line)
	}
}

func (b *table) pool(at string, words []string) {
	var spec pools.Spec
	for _, w := range words[1:] {
		key, value, is := strings.Cut(w, "=")
		allocation := func() *pools.ServiceAllocation {
			if spec.ServiceAllocation == nil {
				spec.ServiceAllocation = &pools.ServiceAllocation{}
			}
			return spec.ServiceAllocation
		}
		switch {
		case w == "manual":
			no := false
			spec.AutoAssign = &no
		case w == "avoid-buggy":
			spec.AvoidBuggyIPs = true
		case !is:
			spec.Addresses = append(spec.Addresses, w)
		case key == "priority":
			allocation().Priority = number(b.T, at, value)
		case key == "namespaces":
			allocation().Namespaces = strings.Split(value, ",")
		case key == "namespace-labels":
			allocation().NamespaceSelectors = append(allocation().NamespaceSelectors, selector(value))
		case key == "labels":
			allocation().ServiceSelectors = append(allocation().ServiceSelectors, selector(value))
		default:
			b.Fatalf("%s: unknown word %q", at, w)
		}
	}
	p, err := pools.New(words[0], spec)
	if err != nil {
		b.Fatalf("%s: %v", at, err)
	}
	b.next = append(b.next, p)
}

func selector(text string) metav1.LabelSelector {
	return metav1.LabelSelector{MatchLabels: labels(text)}
}

func labels(text string) map[string]string {
	set := map[string]string{}
	for _, pair := range strings.Split(text, ",") {
		key, value, _ := strings.Cut(pair, "=")
		set[key] = value
	}
	return set
}

func number(t *testing.T, at, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	return n
}

func addresses(t *testing.T, at, text string) (list []netip.Addr) {
	t.Helper()
	if text == "none" {
		return nil
	}
	for _, word := range strings.Split(text, ",") {
		a, err := netip.ParseAddr(word)
		if err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		list = append(list, a)
	}
	return list
}

// request runs a line with a request to the allocator.
func (b *table) request(at, line, verb string, words []string, want string) {
	r := &pools.Request{Key: "/" + words[0], Policy: corev1.IPFamilyPolicySingleStack}
	what := words[1]
	for _, w := range words[2:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "port":
			protocol, n, _ := strings.Cut(value, "/")
			r.Ports = append(r.Ports, pools.Port{Protocol: corev1.Protocol(strings.ToUpper(protocol)),
				Number: int32(number(b.T, at, n))})
		case "share":
			r.Sharing.Key = value
		case "backend":
			r.Sharing.Backend = value
		case "namespace":
			r.Namespace = value
		case "labels":
			r.Labels = labels(value)
		case "pool":
			r.Pool = value
		case "policy":
			r.Policy = policies[value]
		default:
			b.Fatalf("%s: unknown word %q", at, w)
		}
	}
	before, _ := b.a.Claimed(r.Key)
	var got []netip.Addr
	var refusal *pools.Refusal
	if verb == "assign" {
		got = addresses(b.T, at, what)
		refusal = b.a.Assign(r, got)
	} else {
		r.V4, r.V6 = strings.Contains(what, "4"), strings.Contains(what, "6")
		got, refusal = b.a.Allocate(r)
	}
	after, _ := b.a.Claimed(r.Key)
	switch {
	case refusal != nil:
		if want != string(refusal.Reason) {
			b.Errorf("%s: %s: %v, want %s", at, line, refusal, want)
		}
		if !slices.Equal(before, after) {
			b.Errorf("%s: %s: refused, and yet it has %v instead of %v", at, line, after, before)
		}
	case want != "ok":
		b.Errorf("%s: %s: has %v, want %s", at, line, got, want)
	case !slices.Equal(got, after):
		b.Errorf("%s: %s: returned %v, and has %v", at, line, got, after)
	}
	if verb == "allocate" && refusal == nil {
		b.checkAllocated(at, line, r, got)
	}
}

func (b *table) checkAllocated(at, line string, r *pools.Request, got []netip.Addr) {
	var v4, v6 int
	for _, a := range got {
		if !slices.Contains(b.valid, a) {
			b.Errorf("%s: %s: %v is none of %v", at, line, a, b.valid)
		}
		if a.Is4() {
			v4++
		} else {
			v6++
		}
	}
	one := r.Policy == corev1.IPFamilyPolicyPreferDualStack && v4+v6 == 1
	if !one && (v4 == 1 != r.V4 || v6 == 1 != r.V6) || v4 > 1 || v6 > 1 {
		b.Errorf("%s: %s: has %v", at, line, got)
	}
}

var policies = map[string]corev1.IPFamilyPolicy{
	"require": corev1.IPFamilyPolicyRequireDualStack, "prefer": corev1.IPFamilyPolicyPreferDualStack,
}

// newService reads the words of a Service.
func newService(t *testing.T, at string, words []string) (s *corev1.Service, namespaceLabels map[string]string) {
	t.Helper()
	s = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "test", Annotations: map[string]string{}},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "name":
			s.Name, s.UID = value, types.UID(value)
		case "type":
			s.Spec.Type = corev1.ServiceType(value)
		case "ips":
			s.Spec.ClusterIPs = strings.Split(value, ",")
			s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
		case "clusterIP":
			s.Spec.ClusterIP = value
		case "loadBalancerIP":
			s.Spec.LoadBalancerIP = value
		case "wish":
			s.Annotations["metallb.io/loadBalancerIPs"] = value
		case "pool":
			s.Annotations["metallb.io/address-pool"] = value
		case "share":
			s.Annotations["metallb.io/allow-shared-ip"] = value
		case "families":
			policy := policies[value]
			s.Spec.IPFamilyPolicy = &policy
		case "policy":
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicy(value)
		case "selector":
			s.Spec.Selector = labels(value)
		case "namespace":
			s.Namespace = value
		case "namespace-labels":
			namespaceLabels = labels(value)
		case "labels":
			s.Labels = labels(value)
		case "port":
			protocol, n, _ := strings.Cut(value, "/")
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
				Protocol: corev1.Protocol(strings.ToUpper(protocol)), Port: int32(number(t, at, n))})
		case "status":
			for _, entry := range strings.Split(value, ",") {
				host, ip, both := strings.Cut(entry, "/")
				if !both {
					host, ip = "", entry
				}
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
					corev1.LoadBalancerIngress{Hostname: host, IP: ip})
			}
		default:
			if !strings.Contains(key, "/") {
				t.Fatalf("%s: unknown word %q", at, w)
			}
			s.Annotations[key] = value
		}
	}
	return s, namespaceLabels
}

// service runs a line about a whole Service.
func (b *table) service(at, line string, words []string, want string) {
	if slices.Equal(words, []string{"deleted"}) {
		words = []string{"type="} // not of type LoadBalancer, as one that is not there
	}
	s, namespaceLabels := newService(b.T, at, words)
	if s.UID == "" { // no name: a new Service each time
		b.unique++
		s.UID = types.UID(strconv.Itoa(b.unique))
	}
	var result pools.Result
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		result = b.a.Converge(s, namespaceLabels)
	} else {
		b.a.Forget(pools.KeyOf(s))
	}
	wanted := strings.Fields(want)
	told := result.Refusal != nil || len(result.Notes) > 0
	if wantTold := len(wanted) > 1; told != wantTold {
		b.Errorf("%s: %s: refusal %v, notes %v", at, line, result.Refusal, result.Notes)
	}
	if len(wanted) > 2 {
		reasons := map[pools.Reason]bool{}
		if result.Refusal != nil {
			reasons[result.Refusal.Reason] = true
		}
		for _, n := range result.Notes {
			reasons[n.Reason] = true
		}
		if !reasons[pools.Reason(wanted[2])] {
			b.Errorf("%s: %s: refusal %v, notes %v, want %s", at, line, result.Refusal, result.Notes, wanted[2])
		}
	}
	if wanted[0] == "keep" || result.Keep {
		if wanted[0] != "keep" || !result.Keep {
			b.Errorf("%s: %s: %+v", at, line, result)
		}
		return
	}
	if expected := addresses(b.T, at, wanted[0]); !slices.Equal(result.Addresses, expected) {
		b.Errorf("%s: %s: has %v, want %v (%v)", at, line, result.Addresses, expected, result.Refusal)
	}
}

// count compares the numbers of a pool.
func (b *table) count(at, line, verb string, words []string) {
	u := b.a.Usage()[words[0]]
	got := map[string]int64{"4": u.Used4, "6": u.Used6}
	if verb == "size" {
		got = map[string]int64{"4": u.Size4, "6": u.Size6}
	}
	want := map[string]int64{}
	for _, w := range words[1:] {
		family, value, _ := strings.Cut(w, "=")
		if value == "max" {
			want[family] = math.MaxInt64
			continue
		}
		want[family] = int64(number(b.T, at, value))
	}
	if !maps.Equal(got, want) {
		b.Errorf("%s: %s: is %v", at, line, got)
	}
}
