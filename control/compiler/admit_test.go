package compiler

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
)

// greedy returns Service n of namespace a. All claim the same external IPs.
func greedy(n, ips, ports int) *corev1.Service {
	s := wide(fmt.Sprintf("greedy-%d", n), 0, ports, int64(n+1))
	s.Namespace, s.Spec.ClusterIP = "a", fmt.Sprintf("10.97.%d.%d", n>>8, n&255)
	for i := range ips {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("198.51.100.%d", i+1))
	}
	return s
}

// all counts the frontends in the snapshot by namespace.
func (l *limited) all() map[string]int {
	n := map[string]int{}
	l.snapshot.Frontends(func(f *services.Frontend) bool { n[f.Service.Namespace]++; return true })
	return n
}

// TestLostClaimsTakeNoRoom: equal Services of one namespace, of which only the oldest wins its
// claims, leave room for a younger Service of another namespace. The sizes are a gateway's.
func TestLostClaimsTakeNoRoom(t *testing.T) {
	const room = 229_376
	l := newLimited(t, Config{MaxFrontends: room, MaxAddrs: room, MaxSources: room})
	l.cfg.ClusterIPs = false
	for i := range 54 {
		l.tracker.Upsert(limitsSource, greedy(i, 128, 64))
	}
	victim := wide("victim", 1, 3, 1000)
	victim.Spec.ExternalIPs = []string{"10.96.0.1"}
	l.tracker.Upsert(limitsSource, victim)
	l.Compile(l.tracker.Changes())
	if n, _ := l.served(1); n != 3 {
		t.Errorf("the younger Service has %d frontends, want 3", n)
	}
}

// TestRoomFollowsContests: in a full table a Service is charged only for claims that it wins, also
// after the Services that won against it are gone or denied.
func TestRoomFollowsContests(t *testing.T) {
	l := newLimited(t, Config{MaxFrontends: 20, MaxAddrs: 100, MaxSources: 100})
	for i := range 4 { // a frontend of its own each, and 3 that all claim
		l.tracker.Upsert(limitsSource, greedy(i, 3, 1))
	}
	l.tracker.Upsert(limitsSource, wide("victim", 1, 10, 1000))
	l.compile()
	if n := l.all(); n["a"] != 4+3 || n["n"] != 10 {
		t.Fatalf("frontends %v", n)
	}
	l.tracker.Delete(limitsSource, objects.ObjectID{Kind: objects.KindService, Namespace: "a", Name: "greedy-0"})
	l.compile()
	if n := l.all(); n["a"] != 3+3 || n["n"] != 10 {
		t.Errorf("without the oldest: frontends %v", n)
	}
	l.tracker.Upsert(limitsSource, wide("older", 2, 8, 0)) // the youngest gives way
	problems := l.compile()
	if n := l.all(); n["a"] != 3+3 || n["n"] != 8 || len(problems) == 0 {
		t.Errorf("with an older one: frontends %v, %v", n, problems)
	}
}

// TestNamespaceShare: a namespace gets at most its share of each table. Objects beyond the share
// are refused one by one, and other namespaces have the rest.
func TestNamespaceShare(t *testing.T) {
	l := newLimited(t, Config{MaxFrontends: 20, MaxAddrs: 100, MaxSources: 100, NamespaceShare: 50})
	for i := range 3 {
		l.tracker.Upsert(limitsSource, greedy(i, 0, 4))
	}
	l.tracker.Upsert(limitsSource, wide("victim", 1, 10, 1000))
	problems := l.compile()
	if n := l.all(); n["a"] != 8 || n["n"] != 10 {
		t.Errorf("frontends %v", n)
	}
	if len(problems) != 1 || problems[0].Object.Name != "greedy-2" || problems[0].Reason != objects.ReasonNoRoom {
		t.Errorf("problems %v", problems)
	}
	l.tracker.Upsert(limitsSource, greedy(1, 0, 2)) // makes room for the third
	if problems := l.compile(); len(problems) != 0 || l.all()["a"] != 10 {
		t.Errorf("frontends %v, %v", l.all(), problems)
	}
}

// TestSlotsOfTablesAreShared: Services of a few thousand endpoints for each port have tables as
// long as the largest ones. A namespace gets no more than its share of all slots.
func TestSlotsOfTablesAreShared(t *testing.T) {
	l := newLimited(t, Config{NamespaceShare: 50})
	l.tables.deferring = true // nothing is built here
	const ports, endpoints = 7, 10_500
	var b tracker.Batch
	for i := range 3 {
		name := fmt.Sprintf("long-%d", i)
		b.Upsert(limitsSource, wide(name, byte(i+1), ports, int64(i)))
		for n := 0; n < endpoints; n += 500 {
			b.Upsert(limitsSource, wideSlice(name, byte(n/500), ports, 500))
		}
	}
	victim, slice := wide("victim", 9, ports, 1000), wideSlice("victim", 100, ports, 5)
	victim.Namespace, slice.Namespace = "victim", "victim"
	b.Upsert(limitsSource, victim)
	b.Upsert(limitsSource, slice)
	l.tracker.Apply(&b)
	_, problems, _ := l.Compile(l.tracker.Changes())
	if len(problems) != 1 || problems[0].Object.Name != "long-2" || problems[0].Reason != objects.ReasonNoRoom ||
		!strings.Contains(problems[0].Message, "room for 67108864 slots") {
		t.Errorf("problems %v", problems)
	}
	for last, want := range map[byte]int{1: endpoints, 2: endpoints, 3: 0, 9: 5} {
		if _, n := l.served(last); n != want {
			t.Errorf("10.96.0.%d has %d endpoints, want %d", last, n, want)
		}
	}
	// Schedulers that compare connections have no tables.
	third := wide("long-2", 3, ports, 2)
	third.Annotations = map[string]string{"sluice.dev/scheduler": "lc"}
	l.tracker.Upsert(limitsSource, third)
	if _, problems, _ := l.Compile(l.tracker.Changes()); len(problems) != 0 {
		t.Errorf("problems %v of a Service without tables", problems)
	}
}

// TestClaimsOfOneNamespaceAreBounded: if a namespace's Services ask for more than a whole table,
// the youngest have no claims, because claims take memory.
func TestClaimsOfOneNamespaceAreBounded(t *testing.T) {
	l := newLimited(t, Config{MaxFrontends: 20, MaxAddrs: 100, MaxSources: 100, NamespaceShare: 50})
	for i := range 10 {
		l.tracker.Upsert(limitsSource, greedy(i, 3, 1)) // 4 each, 3 of them in common
	}
	l.tracker.Upsert(limitsSource, wide("victim", 1, 10, 1000))
	problems := l.compile()
	claims := 0
	for _, u := range l.units.byKey {
		if u.key.namespace == "a" {
			claims += len(u.claims)
		}
	}
	if n := l.all(); claims != 20 || n["a"] != 5+3 || n["n"] != 10 {
		t.Errorf("%d claims of the namespace, frontends %v, %v", claims, n, problems)
	}
}
