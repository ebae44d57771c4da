package k8s_test

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/k8s"
	"sluice.dev/sluice/control/k8s/k8stest"
	"sluice.dev/sluice/fastpath/services"
)

func TestEventsReachTheTracker(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	s.Set(service("a", 80), slice("a", "a-1", "10.0.0.1"))
	w := start(t, s)
	w.sync(t)
	steps := []struct {
		name string
		do   func()
		want int
	}{
		{"nothing", func() {}, 0},
		{"added", func() { s.Set(service("b", 81), slice("b", "b-1", "10.0.0.2")) }, 2},
		{"modified", func() { s.Set(slice("a", "a-1", "10.0.0.1", "10.0.0.3")) }, 1},
		{"written and the same", func() { s.Set(service("a", 80)) }, 0},
		{"deleted", func() { s.Delete(slice("b", "b-1"), service("b", 81)) }, 2},
		{"deleted again", func() { s.Delete(service("b", 81)) }, 0},
		{"added and deleted", func() { s.Set(service("c", 82)); s.Delete(service("c", 82)) }, 0},
	}
	for _, step := range steps {
		step.do()
		w.settle(t)
		if got := w.tracker.Changes().Len(); got != step.want {
			t.Errorf("%s: %d changes, want %d", step.name, got, step.want)
		}
	}
}

// Kube-proxy's selectors: what they leave out is not there, and goes when it comes to be
// left out.
func TestSelectors(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	foreign, headless, headlessSlice := service("foreign", 80), service("headless", 81), slice("headless", "headless-1",
		"10.0.0.1")
	foreign.Labels["service.kubernetes.io/service-proxy-name"] = ""
	headless.Spec.ClusterIP, headless.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	headlessSlice.Labels[corev1.IsHeadlessService] = ""
	s.Set(foreign, headless, headlessSlice, node("another"), service("a", 82))
	w := start(t, s)
	w.sync(t)
	for i, want := range []int{2, 1, 1} { // with the marker
		if got := w.watcher.Status()[i]; got.Objects != want {
			t.Errorf("%s: %d objects, want %d", got.Source.Path, got.Objects, want)
		}
	}
	labelled := service("a", 82)
	labelled.Labels["service.kubernetes.io/service-proxy-name"] = "other"
	s.Set(labelled)
	w.settle(t)
	if got := w.tracker.Changes().Len(); got != 1 || w.watcher.Status()[0].Objects != 1 {
		t.Errorf("labelled for another proxy: %d changes, %d Services left, want 1 and the marker", got,
			w.watcher.Status()[0].Objects)
	}
}

// A relist, however its objects are ordered, is no change; what was missed is one.
func TestExpiredWatchListsAnew(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		t.Run(map[bool]string{false: "streamed", true: "plain"}[plain], func(t *testing.T) {
			t.Parallel()
			s := k8stest.Start(t)
			s.PlainLists = plain
			for i := range 700 { // more than one page
				name := "s" + string(rune('a'+i%26)) + strings.Repeat("x", i/26)
				s.Set(service(name, int32(1000+i)), slice(name, name+"-1", "10.0.0.1", "10.0.0.2"))
			}
			s.Shuffle = rand.New(rand.NewPCG(7, 7)).Shuffle
			w := start(t, s)
			w.sync(t)
			if n := w.watcher.Status()[0].Objects; n != 701 {
				t.Fatalf("%d Services listed, want 701", n)
			}
			w.settle(t)
			read, lists := w.tracker.Read(), w.lists()
			s.Expire()
			w.relisted(t, lists)
			if got := w.tracker.Changes().Len(); got != 0 {
				t.Errorf("%d changes by a list that says the same", got)
			}
			// One batch for each marker, none for the lists.
			if got := w.tracker.Read() - read; got != 3 {
				t.Errorf("%d batches, want the 3 of settling", got)
			}
			lists = w.lists()
			s.Stop()
			s.Forget(service("sa", 1000))
			s.Set(slice("sb", "sb-1", "10.0.0.9"))
			s.Expire()
			if err := s.Start(); err != nil {
				t.Fatal(err)
			}
			w.relisted(t, lists)
			if got := w.tracker.Changes().Len(); got != 2 {
				t.Errorf("%d changes, want one Service gone and one slice changed", got)
			}
		})
	}
}

// While the API server does not answer the last good state stays, and there is a Problem.
func TestServerUnavailable(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	s.Set(service("a", 80), slice("a", "a-1", "10.0.0.1"))
	w := start(t, s)
	loop, handle := w.loop(t)
	<-loop.Ready()
	first := handle.Load()
	s.Stop()
	eventually(t, "three problems, of kinds that have been listed and cannot be watched", func() bool {
		return w.problems("cannot be read from the API server since") == 3 &&
			!slices.ContainsFunc(w.watcher.Status(), func(st k8s.Status) bool {
				return st.Err == nil || st.Since.IsZero() || !st.Synced
			})
	})
	if handle.Load() != first {
		t.Error("another table because the API server is away")
	}
	s.Set(service("b", 81))
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no problem", func() bool { return w.problems("cannot be read") == 0 })
	w.settle(t)
	eventually(t, "the new Service", func() bool { return len(frontends(handle.Load())) == 3 })
}

func frontends(s *services.Snapshot) (keys []services.FrontendKey) {
	s.Frontends(func(f *services.Frontend) bool { keys = append(keys, f.Key); return true })
	return keys
}

// Events that no real server should send change nothing.
func TestDuplicateAndStaleEvents(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	old := slice("a", "a-1", "10.0.0.1")
	s.Set(service("a", 80), old, service("gone", 81))
	w := start(t, s)
	w.sync(t)
	s.Set(slice("a", "a-1", "10.0.0.1", "10.0.0.2"))
	s.Delete(service("gone", 81))
	w.settle(t)
	w.tracker.Changes()

	at := func(version string, o interface{ SetResourceVersion(string) }) { o.SetResourceVersion(version) }
	stale, again, ghost := slice("a", "a-1", "10.9.9.9"), slice("a", "a-1", "10.9.9.8"), service("gone", 81)
	at(old.ResourceVersion, stale)
	at("7", again) // the version of a-1 now
	at("4", ghost) // from before it was deleted
	s.Send("MODIFIED", stale)
	s.Send("DELETED", stale)
	s.Send("ADDED", stale)
	s.Send("ADDED", ghost)
	s.Send("MODIFIED", ghost)
	s.Send("DELETED", ghost)
	w.settle(t)
	if got := w.tracker.Changes().Len(); got != 0 {
		t.Errorf("%d changes by stale events", got)
	}
	s.Set(slice("a", "a-1", "10.0.0.3"))
	w.settle(t)
	if got := w.tracker.Changes().Len(); got != 1 {
		t.Errorf("%d changes by a new version, want 1", got)
	}
}

// The three kinds are listed in any order and speed: nothing is published before the
// last object of the last one, and the first table has all of it.
func TestNothingIsPublishedBeforeAllIsListed(t *testing.T) {
	t.Parallel()
	orders := 50
	if os.Getenv("SLUICE_E2E") == "full" {
		orders = 1000
	}
	seed := rand.Uint64()
	t.Logf("seed %d, %d orders", seed, orders)
	r := rand.New(rand.NewPCG(seed, 0))
	for range orders {
		oneOrder(t, r)
		if t.Failed() {
			return
		}
	}
}

// oneOrder stops one list at a random place, lets all others come, and looks.
func oneOrder(t *testing.T, r *rand.Rand) {
	s := k8stest.Start(t)
	n := 1 + r.IntN(5)
	for i := range n {
		name := "s" + string(rune('a'+i))
		s.Set(service(name, int32(80+i)))
		for k := range 1 + r.IntN(3) {
			s.Set(slice(name, name+"-"+string(rune('1'+k)), "10.0.1."+string(rune('1'+k))))
		}
	}
	s.Shuffle = rand.New(rand.NewPCG(r.Uint64(), 0)).Shuffle
	kinds := []string{"services", "endpointslices", "nodes"}
	slow, where := kinds[r.IntN(3)], r.IntN(n+1)
	stopped, goOn := make(chan bool), make(chan bool)
	s.Pace = func(kind string, i, n int) {
		if kind == slow && i == min(where, n) {
			stopped <- true
			<-goOn
		}
	}
	w := start(t, s)
	loop, handle := w.loop(t)
	<-stopped
	for _, kind := range kinds {
		if kind != slow {
			eventually(t, kind, func() bool { return w.Lists(kind) == 1 })
		}
	}
	select {
	case <-loop.Ready():
		t.Errorf("ready with %s listed up to object %d", slow, where)
	default:
	}
	if handle.Load() != nil {
		t.Errorf("published with %s listed up to object %d", slow, where)
	}
	close(goOn)
	<-loop.Ready()
	want, _, _ := compiler.New(compiler.Config{NodeName: nodeName}).Full(w.tracker.State())
	if got := handle.Load(); len(frontends(got)) != n+1 || len(frontends(want)) != n+1 ||
		got.BackendIndexes() != want.BackendIndexes() {
		t.Errorf("first table: %d frontends and %d backends, want %d and %d", len(frontends(got)), got.BackendIndexes(),
			n+1, want.BackendIndexes())
	}
}

// A kind that may not be listed stops the start, with a Problem.
func TestForbidden(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	s.Allow = func(_, _, resource string) bool { return resource != "endpointslices" }
	w := start(t, s)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	feeds := w.watcher.Feeds()
	if err := feeds[0].Sync(ctx); err != nil {
		t.Errorf("services: %v", err)
	}
	err := feeds[1].Sync(ctx)
	if err == nil || !strings.Contains(err.Error(), "endpointslices cannot be listed") || !strings.Contains(err.Error(),
		"forbidden") {
		t.Errorf("endpointslices: %v", err)
	}
	if w.problems("nothing is served before they are listed once") != 1 {
		t.Error("there is no problem although nothing is served")
	}
}

func TestOwnNodeMissing(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	w := start(t, s)
	s.Delete(node(nodeName))
	eventually(t, "a problem", func() bool { return w.problems("Node "+nodeName+": does not exist") == 1 })
	if w.tracker.Changes(); w.tracker.Node(nodeName).Known {
		t.Error("the Node is known")
	}
	s.Set(node(nodeName))
	eventually(t, "no problem", func() bool { return w.problems("does not exist") == 0 })
	if n := w.tracker.Node(nodeName); !n.Known || n.Zone != "a" {
		t.Errorf("the Node is %+v, want zone a", n)
	}
}

// Sync ends with its context, and with the Watcher.
func TestSyncEnds(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	block := make(chan bool)
	s.Pace = func(string, int, int) { <-block }
	defer close(block)
	w := start(t, s)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := w.watcher.Feeds()[0].Sync(ctx); err != context.DeadlineExceeded {
		t.Errorf("Sync: %v, want the context's", err)
	}
}

// The hold can be switched on and off while the Watcher runs. When switched on it knows the present
// objects, and does not count them as changes.
func TestHoldCanBeSwitched(t *testing.T) {
	t.Parallel()
	s := k8stest.Start(t)
	s.Set(service("a", 80), slice("a", "a-1", "10.0.0.1"), slice("a", "a-2", "10.0.0.2"))
	w := start(t, s)
	w.sync(t)
	lists := w.lists()
	w.watcher.SetStaleEndpointTimeout(time.Hour)
	w.relisted(t, lists)
	if got := w.tracker.Changes().Len(); got != 0 {
		t.Errorf("%d changes by switching on", got)
	}
	s.Delete(slice("a", "a-1"), slice("a", "a-2"))
	w.settle(t)
	if got, held := w.tracker.Changes().Len(), w.problems("they stay in use for 1h0m0s"); got != 0 || held != 1 {
		t.Errorf("all slices vanished: %d changes and %d problems, want it held", got, held)
	}
	w.watcher.SetStaleEndpointTimeout(0)
	if got, held := w.tracker.Changes().Len(), w.problems("they stay in use for 1h0m0s"); got != 2 || held != 0 {
		t.Errorf("switched off: %d changes and %d problems, want both slices gone", got, held)
	}
}
