package k8s_test

import (
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/control/k8s/k8stest"
	"sluice.dev/sluice/control/objects"
)

func textOf(list []objects.Problem) string {
	var lines []string
	for _, p := range list {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

// rights are all that a gateway may do, as the package's documentation and the chart's
// ClusterRole have it.
var rights = []k8stest.Request{
	{Verb: "list", Group: "", Resource: "services"},
	{Verb: "watch", Group: "", Resource: "services"},
	{Verb: "list", Group: "discovery.k8s.io", Resource: "endpointslices"},
	{Verb: "watch", Group: "discovery.k8s.io", Resource: "endpointslices"},
	{Verb: "list", Group: "", Resource: "nodes"},
	{Verb: "watch", Group: "", Resource: "nodes"},
	// With kubernetes.events:
	{Verb: "create", Group: "events.k8s.io", Resource: "events"},
	{Verb: "patch", Group: "events.k8s.io", Resource: "events"},
	{Verb: "get", Group: "", Resource: "services"},
	{Verb: "get", Group: "discovery.k8s.io", Resource: "endpointslices"},
}

// The rights are enough, and each of them is needed.
func TestRights(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	s.PlainLists = true // an old server: list is requested, too
	s.Allow = func(verb, group, resource string) bool {
		return slices.Contains(rights, k8stest.Request{Verb: verb, Group: group, Resource: resource})
	}
	bad := slice("a", "bad", "10.0.0.1")
	bad.AddressType = "IPX"
	s.Set(service("a", 80), service("rival", 80), bad)
	w := start(t, s)
	loop, _ := w.loop(t)
	<-loop.Ready()
	runEvents(t, w, loop.Problems)
	eventually(t, "Events", func() bool {
		return written(t, s, "FrontendConflict", "Service/rival") == 1 && written(t, s, "InvalidObject",
			"EndpointSlice/bad") == 1
	})
	s.Delete(service("a", 80))
	eventually(t, "no conflict", func() bool {
		list, _ := loop.Problems()
		return !strings.Contains(textOf(list),
			"rival")
	})
	quietRounds(t, w, s)
	s.Set(service("a", 80))
	eventually(t, "a series", func() bool { _, patches := s.Events(); return patches == 1 })

	asked := s.Requests()
	for _, q := range asked {
		if !slices.Contains(rights, q) {
			t.Errorf("requested %v, which is not among the rights", q)
		}
	}
	for _, q := range rights {
		if !slices.Contains(asked, q) {
			t.Errorf("%v is a right that nothing needed", q)
		}
	}
}
