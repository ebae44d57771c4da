package upstream

import (
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func service(namespace, name string, spec corev1.ServiceSpec) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}
}

// Names of Services have their ClusterIPs, or another name; others do not exist.
func TestNames(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	for _, s := range []*corev1.Service{
		service("ns", "web", corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIPs: []string{"10.96.0.7",
			"fd00:96::7"}}),
		service("ns", "none", corev1.ServiceSpec{ClusterIPs: []string{"None"}}),
		service("ns", "alias", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName,
			ExternalName: "web.ns.svc.cluster.local"}),
		service("ns", "abroad", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"}),
		service("ns", "circle", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName,
			ExternalName: "circle.ns.svc.cluster.local"}),
	} {
		if err := store.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	n := (&Watch{services: store}).Names()
	const a, aaaa = dnsmessage.TypeA, dnsmessage.TypeAAAA
	for _, tc := range []struct {
		name  string
		qtype dnsmessage.Type
		rcode dnsmessage.RCode
		want  []string // addresses, or names of CNAMEs
	}{
		{"web.ns.svc.cluster.local.", a, dnsmessage.RCodeSuccess, []string{"10.96.0.7"}},
		{"WEB.ns.svc.Cluster.local.", aaaa, dnsmessage.RCodeSuccess, []string{"fd00:96::7"}},
		{"web.ns.svc.cluster.local.", dnsmessage.TypeMX, dnsmessage.RCodeSuccess, nil},
		{"none.ns.svc.cluster.local.", a, dnsmessage.RCodeSuccess, nil},
		{"alias.ns.svc.cluster.local.", a, dnsmessage.RCodeSuccess, []string{"web.ns.svc.cluster.local.", "10.96.0.7"}},
		{"abroad.ns.svc.cluster.local.", a, dnsmessage.RCodeSuccess, []string{"example.org."}},
		{"web.other.svc.cluster.local.", a, dnsmessage.RCodeNameError, nil},
		{"web.ns.svc.cluster.local.ns.svc.cluster.local.", a, dnsmessage.RCodeNameError, nil},
		{"example.org.", a, dnsmessage.RCodeNameError, nil},
	} {
		rcode, got := ask(t, n, tc.name, tc.qtype)
		if rcode != tc.rcode || len(got) != len(tc.want) {
			t.Errorf("%s %s: %s %q, want %s %q", tc.name, tc.qtype, rcode, got, tc.rcode, tc.want)
			continue
		}
		for i := range got {
			if got[i] != tc.want[i] {
				t.Errorf("%s %s: %q, want %q", tc.name, tc.qtype, got, tc.want)
			}
		}
	}
	if _, got := ask(t, n, "circle.ns.svc.cluster.local.", a); len(got) == 0 || len(got) > 8 {
		t.Errorf("a circle of names: %d answers", len(got))
	}
	if _, err := n.answer([]byte("no message")); err == nil {
		t.Error("an answer to what is no message")
	}
}

// ask asks a question and reads the answer.
func ask(t *testing.T, n *Names, name string, qtype dnsmessage.Type) (dnsmessage.RCode, []string) {
	t.Helper()
	question := dnsmessage.Message{
		Header: dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: qtype,
			Class: dnsmessage.ClassINET}},
	}
	packed, err := question.Pack()
	if err != nil {
		t.Fatal(err)
	}
	reply, err := n.answer(packed)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var m dnsmessage.Message
	if err := m.Unpack(reply); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if m.ID != 7 || !m.Response || len(m.Questions) != 1 {
		t.Errorf("%s: header %+v", name, m.Header)
	}
	var got []string
	for _, r := range m.Answers {
		switch b := r.Body.(type) {
		case *dnsmessage.AResource:
			got = append(got, netip.AddrFrom4(b.A).String())
		case *dnsmessage.AAAAResource:
			got = append(got, netip.AddrFrom16(b.AAAA).String())
		case *dnsmessage.CNAMEResource:
			got = append(got, b.CNAME.String())
		}
	}
	return m.RCode, got
}
