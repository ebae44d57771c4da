package objects

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestUnknownAnnotations: an annotation with the prefix that is not read is a warning that names
// the one that may be meant; other prefixes are ignored. The rest of the object is served.
func TestUnknownAnnotations(t *testing.T) {
	const (
		ofService = "is unknown, known for Services are sluice.dev/scheduler, sluice.dev/weights, " +
			"sluice.dev/health-check, sluice.dev/proxy-protocol, sluice.dev/forwarding, " +
			"sluice.dev/limit-connections-per-source, " +
			"sluice.dev/limit-new-connections-per-source, sluice.dev/limit-connections, " +
			"sluice.dev/limit-new-connections; it is ignored"
		ofSlice = "is unknown, known for EndpointSlices are sluice.dev/weights; it is ignored"
	)
	for _, c := range []struct{ key, ofService, ofSlice string }{
		{"sluice.dev/schedular", "is unknown, did you mean sluice.dev/scheduler? It is ignored",
			ofSlice},
		{"sluice.dev/Scheduler", "is unknown, did you mean sluice.dev/scheduler? It is ignored",
			ofSlice},
		{"Sluice.dev/weights", "is unknown, did you mean sluice.dev/weights? It is ignored",
			"is unknown, did you mean sluice.dev/weights? It is ignored"},
		{"sluice.dev/healthcheck", "is unknown, did you mean sluice.dev/health-check? It is ignored",
			ofSlice},
		{"sluice.dev/limit-conections", "is unknown, did you mean sluice.dev/limit-connections? It is ignored",
			ofSlice},
		{"sluice.dev/", ofService, ofSlice},
		{"sluice.dev/limits", ofService, ofSlice},
		{"sluice.dev/scheduler", "", "is not read of an EndpointSlice; it is ignored"},
		{"sluice.dev/limit-connections", "", "is not read of an EndpointSlice; it is ignored"},
		{"example.org/schedular", "", ""},
		{"sluice.devel/scheduler", "", ""},
		{"scheduler", "", ""},
	} {
		value := "rr"
		if strings.Contains(c.key, "limit") {
			value = "1"
		}
		meta := metav1.ObjectMeta{Name: "a", Namespace: "demo", Annotations: map[string]string{c.key: value}}
		service, malformed := TrimService(&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
			ClusterIP: "10.9.0.1", Ports: []corev1.ServicePort{{Port: 80}}}})
		if len(malformed) > 0 || !service.Served() {
			t.Errorf("Service with %s: %v", c.key, malformed)
		}
		expectWarning(t, "Service with "+c.key, service.Problems, c.ofService)
		slice, malformed := TrimSlice(&discoveryv1.EndpointSlice{ObjectMeta: meta,
			AddressType: discoveryv1.AddressTypeIPv4})
		if len(malformed) > 0 {
			t.Errorf("EndpointSlice with %s: %v", c.key, malformed)
		}
		expectWarning(t, "EndpointSlice with "+c.key, slice.Problems, c.ofSlice)
	}
}

func expectWarning(t *testing.T, object string, got []FieldProblem, want string) {
	t.Helper()
	switch {
	case want == "" && len(got) == 0:
	case len(got) != 1 || got[0].Message != want || got[0].Severity != Warning:
		t.Errorf("%s: %+v, want a warning %q", object, got, want)
	}
}

// TestManyUnknownAnnotations: an object full of unknown annotations has a bounded number of
// warnings, and the last says how many more there are.
func TestManyUnknownAnnotations(t *testing.T) {
	many := map[string]string{}
	for i := range 10_000 {
		many[fmt.Sprintf("sluice.dev/%05d", i)] = ""
	}
	many["sluice.dev/"+strings.Repeat("x", 1<<20)] = ""
	problems := unknownAnnotations(many, KindService, serviceAnnotations)
	last := problems[len(problems)-1].Message
	if want := "9981 more are unknown; they are ignored"; len(problems) != MaxFieldProblems+1 || last != want {
		t.Errorf("%d problems, the last %q, want %q", len(problems), last, want)
	}
	long := unknownAnnotations(map[string]string{"sluice.dev/" + strings.Repeat("x", 1<<20): ""}, KindService,
		serviceAnnotations)
	if len(long) != 1 || len(long[0].Field) > 200 {
		t.Errorf("a long key: %d problems, field of %d bytes", len(long), len(long[0].Field))
	}
}
