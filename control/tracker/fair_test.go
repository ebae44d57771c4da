package tracker

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control/objects"
)

var fairSource = objects.Source{Kind: "test"}

func fairSlice(namespace, service string, endpoints, version int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	s.Namespace, s.Name = namespace, service+"-x"
	s.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	name, port, tcp := "p", int32(1000+version), corev1.ProtocolTCP
	s.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}}
	for k := range endpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.1.%d.%d", k/250, 1+k%250)}})
	}
	return s
}

// TestOneNamespaceDelaysNoOther: while 100 slices of 900 endpoints of one namespace wait, the slice
// of another one, the last that came, is in the first part of the changes. Parts are small, all
// changes come in the end, and Read says which batches are in.
func TestOneNamespaceDelaysNoOther(t *testing.T) {
	const limit, services = 2000, 100
	tr := New()
	for i := range services {
		tr.Upsert(fairSource, fairSlice("many", fmt.Sprint("s", i), 900, 0))
	}
	tr.Upsert(fairSource, fairSlice("few", "s", 1, 0))
	got := 0
	for part := 0; got < services+1; part++ {
		ch := tr.ChangesWithin(limit)
		if len(ch.Slices) == 0 || len(ch.Slices) > 4 {
			t.Fatalf("part %d has %d slices", part, len(ch.Slices))
		}
		if part == 0 && ch.Slices[0].ID.Namespace != "few" {
			t.Errorf("the first part has %v", ch.Slices)
		}
		got += len(ch.Slices)
		if want := uint64(got - 1); got <= services && ch.Read != want { // the last batch came first
			t.Errorf("after %d slices, Read is %d, want %d", got, ch.Read, want)
		}
		if waits := tr.Waiting().EndpointSlices; waits != services+1-got || tr.Queued().IsZero() != (waits == 0) {
			t.Errorf("after %d slices, %d wait since %v", got, waits, tr.Queued())
		}
	}
	if ch := tr.ChangesWithin(limit); ch.Len() != 0 || ch.Read != services+1 {
		t.Errorf("in the end there are %d changes, and Read is %d", ch.Len(), ch.Read)
	}
	if len(tr.tags) != 0 {
		t.Errorf("%d namespaces are remembered", len(tr.tags))
	}
}

// TestReportTiesNothing: a Problem in a batch with objects of one Service does not make the Tracker
// return the batch as one change.
func TestReportTiesNothing(t *testing.T) {
	tr := New()
	for _, service := range []string{"s", "t"} {
		var b Batch
		b.Report(objects.Source{Kind: "test", Path: service}, []objects.Problem{{Message: "of the place"}})
		b.Upsert(fairSource, fairSlice("many", service, 900, 0))
		tr.Apply(&b)
	}
	for range 2 {
		if n := tr.ChangesWithin(1000).Len(); n != 1 {
			t.Errorf("%d slices are returned together, want 1", n)
		}
	}
}

// TestCostlyServiceIsAlone: a Service that costs more than the limit is in no part with a cheap
// change, and is not put off by cheap changes that go on.
func TestCostlyServiceIsAlone(t *testing.T) {
	const limit = 1000
	tr := New()
	tr.Upsert(fairSource, fairSlice("many", "s", 900, 0))
	tr.Upsert(fairSource, fairSlice("many", "t", 900, 0))
	var parts []string
	for version := range 20 { // ten of them cost as much as one of the others
		tr.Upsert(fairSource, fairSlice("few", "s", 1, version))
		part := ""
		for _, s := range tr.ChangesWithin(limit).Slices {
			part += s.ID.Namespace + "/" + s.ID.Name + " "
		}
		parts = append(parts, part)
	}
	costly := 0
	for _, part := range parts {
		switch part {
		case "many/s-x ", "many/t-x ":
			costly++
		case "few/s-x ":
		default:
			t.Errorf("a part has %q", part)
		}
	}
	if costly != 2 || parts[0] != "few/s-x " {
		t.Errorf("parts %q", parts)
	}
}

// TestDirectServicesCostTheirNodes: a change of a direct Service, which makes an endpoint of each
// Node again, takes a part of its own, and others do not wait for several of them.
func TestDirectServicesCostTheirNodes(t *testing.T) {
	const limit, nodes, ports, services = 20_000, 300, 100, 5
	tr := New()
	node := func(i int) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}} }
	for i := range nodes {
		tr.Upsert(fairSource, node(i))
	}
	for i := range services {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "many", Name: fmt.Sprint("s", i),
			Annotations: map[string]string{"sluice.dev/forwarding": "direct"}}}
		s.Spec.Type, s.Spec.ClusterIP = corev1.ServiceTypeNodePort, "10.96.0.1"
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		for p := range ports {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", p), Port: int32(1 + p)})
		}
		tr.Upsert(fairSource, s)
	}
	tr.Changes()
	change := func() {
		for i := range services {
			tr.Upsert(fairSource, fairSlice("many", fmt.Sprint("s", i), 1, 0))
		}
		tr.Upsert(fairSource, fairSlice("few", "s", 1, 0))
	}
	change()
	for part := range 1 + services {
		if ch := tr.ChangesWithin(limit); len(ch.Slices) != 1 || (ch.Slices[0].ID.Namespace == "few") != (part == 0) {
			t.Errorf("part %d has %v", part, ch.Slices)
		}
	}
	for i := range nodes {
		tr.Delete(fairSource, objects.MakeObjectID(objects.KindNode, "", node(i).Name))
	}
	tr.Changes()
	if tr.nodes != 0 {
		t.Errorf("%d Nodes are counted, and there are none", tr.nodes)
	}
	for i := range services {
		tr.Upsert(fairSource, fairSlice("many", fmt.Sprint("s", i), 1, 1))
	}
	if ch := tr.ChangesWithin(limit); len(ch.Slices) != services {
		t.Errorf("without Nodes the first part has %d slices, want all", len(ch.Slices))
	}
}

// TestBatchesStayTogether: what one batch has of two Services is in one part.
func TestBatchesStayTogether(t *testing.T) {
	tr := New()
	for i := range 10 {
		tr.Upsert(fairSource, fairSlice("x", fmt.Sprint("s", i), 900, 0))
	}
	var b Batch
	b.Upsert(fairSource, fairSlice("x", "a", 900, 0))
	b.Upsert(fairSource, fairSlice("x", "b", 900, 0))
	tr.Apply(&b)
	ch := tr.ChangesWithin(1000)
	if len(ch.Slices) != 2 || ch.Slices[0].ID.Name != "a-x" || ch.Slices[1].ID.Name != "b-x" {
		t.Errorf("the first part has %d slices, want those of the batch", len(ch.Slices))
	}
}

// TestPartsAreTheWhole: the same random changes, taken in parts and all at once, lead to one state.
func TestPartsAreTheWhole(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	inParts, atOnce := New(), New()
	for version := range 2000 {
		for range 1 + r.IntN(3) {
			s := fairSlice(fmt.Sprint("n", r.IntN(4)), fmt.Sprint("s", r.IntN(20)), 1+r.IntN(300), version)
			for _, tr := range []*Tracker{inParts, atOnce} {
				if version%5 == 0 {
					tr.Delete(fairSource, objects.MakeObjectID(objects.KindEndpointSlice, s.Namespace, s.Name))
				} else {
					tr.Upsert(fairSource, s)
				}
			}
		}
		inParts.ChangesWithin(500)
	}
	for len(inParts.dirty) > 0 {
		inParts.ChangesWithin(500)
	}
	atOnce.Changes()
	if a, b := inParts.State(), atOnce.State(); !reflect.DeepEqual(a, b) {
		t.Errorf("%d slices in parts, %d at once, or not the same", len(a.All.Slices), len(b.All.Slices))
	}
	if len(inParts.objects) != len(atOnce.objects) || len(inParts.dirty) != 0 {
		t.Errorf("%d objects, want %d; %d wait", len(inParts.objects), len(atOnce.objects), len(inParts.dirty))
	}
	total := 0
	for _, o := range inParts.objects {
		_, c := belongs(o.good())
		total += inParts.total(c)
	}
	for _, c := range inParts.costs {
		total -= inParts.total(c)
	}
	if total != 0 {
		t.Errorf("costs differ from those of the objects by %d", total)
	}
}
