package compiler_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
)

// costly is a Service whose table is deferred: 300 endpoints in three slices.
type costly struct {
	*testing.T
	tracker  *tracker.Tracker
	compiler *compiler.Compiler
	cluster  controltest.Cluster
}

func newCostly(t *testing.T) *costly {
	c := &costly{t, nil, compiler.New(controltest.Config()), controltest.Cluster{Services: 1, Endpoints: 300}}
	c.tracker = c.cluster.Tracker()
	c.compile()
	c.compiler.DeferTables(true)
	return c
}

func (c *costly) compile() *services.EndpointSet {
	c.Helper()
	c.compiler.Compile(c.tracker.Changes())
	return c.set()
}

func (c *costly) set() (set *services.EndpointSet) {
	c.compiler.Snapshot().Frontends(func(f *services.Frontend) bool {
		set = f.Outside.Set
		return false
	})
	return set
}

// slice changes the weights of the endpoints of a slice.
func (c *costly) slice(n int, weight string) {
	s := c.cluster.Slice(0, n, 0)
	s.Annotations = map[string]string{"sluice.dev/weights": "0.0.0.0/0=" + weight}
	c.tracker.Upsert(controltest.Source, s)
}

func (c *costly) delete(kind, name string) {
	c.tracker.Delete(controltest.Source, objects.ObjectID{Kind: kind, Namespace: "bench", Name: name})
}

func (c *costly) service(change func(*corev1.Service)) {
	s := controltest.Service(0)
	change(s)
	c.tracker.Upsert(controltest.Source, s)
}

// finish builds all tables that are wanted.
func (c *costly) finish(building *compiler.TableJob) {
	for ; building != nil; building = c.compiler.NextTable() {
		building.Build()
		c.compiler.Install(building)
	}
}

// equalsFull compares with tables that were built at once.
func (c *costly) equalsFull() {
	c.Helper()
	full, problems, _ := c.compiler.Full(c.tracker.State())
	got, want := describe(c.compiler.Snapshot(), c.compiler.Problems()), describe(full, problems)
	if got != want {
		c.Errorf("deferred tables differ from those built at once: got\n%.500s\nwant\n%.500s", got, want)
	}
	full.Frontends(func(f *services.Frontend) bool {
		now, ok := c.compiler.Snapshot().FrontendByKey(f.Key)
		if !ok || now.Outside.Set.Named != nil || !slices.Equal(now.Outside.Set.Table, f.Outside.Set.Table) {
			c.Errorf("the table in force at %v is an older one", f.Key)
		}
		return true
	})
}

// TestDeferredTable: a change of a large Service is published at once with the table before, and
// then gets the table that would have been built at once.
func TestDeferredTable(t *testing.T) {
	c := newCostly(t)
	before := c.set()
	c.slice(1, "7")
	now := c.compile()
	if now == before || !slices.Equal(now.Table, before.Table) || now.Weights == nil {
		t.Fatal("the change is not in the next snapshot with the table before")
	}
	c.finish(c.compiler.NextTable())
	if slices.Equal(c.set().Table, before.Table) {
		t.Fatal("the table did not follow the weights")
	}
	c.equalsFull()
}

// TestEndedEndpointsAreReplacedAtOnce: the very next snapshot gives endpoints that ended, or whose
// weight became 0, no new flows, and spreads their slots over the others.
func TestEndedEndpointsAreReplacedAtOnce(t *testing.T) {
	for name, end := range map[string]func(*costly){
		"the slice is deleted": func(c *costly) { c.delete(objects.KindEndpointSlice, "service-0-x1") },
		"the weight becomes 0": func(c *costly) { c.slice(1, "0") },
		"while a table is built": func(c *costly) {
			c.slice(0, "3")
			c.compile()
			c.compiler.NextTable()
			c.slice(1, "0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCostly(t)
			end(c)
			set := c.compile()
			if len(set.Backends) != 200 || len(set.Table) != 65_537 {
				t.Fatalf("%d backends, %d slots", len(set.Backends), len(set.Table))
			}
			slots := map[services.BackendRef]int{}
			for slot := range len(set.Table) {
				slots[set.Pick(uint64(slot)<<32/uint64(len(set.Table))<<32|1<<31)]++
			}
			most := 0
			for ref, n := range slots {
				if !slices.Contains(set.Backends, ref) {
					t.Fatalf("backend %v has %d slots, and gets no new flows", ref, n)
				}
				most = max(most, n)
			}
			if mean := 65_537 / 200; len(slots) != 200 || most > 4*mean {
				t.Errorf("%d backends have slots, one of them %d; the mean is %d", len(slots), most, mean)
			}
		})
	}
}

// TestTablesOvertaken: whatever happens while a table is built, the table of the newest version is
// in force in the end.
func TestTablesOvertaken(t *testing.T) {
	for name, meanwhile := range map[string]func(*costly){
		"nothing":        func(*costly) {},
		"another change": func(c *costly) { c.slice(1, "5") },
		"two changes": func(c *costly) {
			c.slice(1, "5")
			c.compile()
			c.slice(2, "9")
		},
		"it is taken back": func(c *costly) { c.tracker.Upsert(controltest.Source, c.cluster.Slice(0, 0, 0)) },
		"endpoints end":    func(c *costly) { c.delete(objects.KindEndpointSlice, "service-0-x1") },
		"most end": func(c *costly) {
			c.slice(1, "0")
			c.delete(objects.KindEndpointSlice, "service-0-x2")
		},
		"all end": func(c *costly) {
			c.slice(0, "0")
			c.slice(1, "0")
			c.delete(objects.KindEndpointSlice, "service-0-x2")
		},
		"the Service ends": func(c *costly) { c.delete(objects.KindService, "service-0") },
		"it comes again": func(c *costly) {
			c.delete(objects.KindService, "service-0")
			c.compile()
			c.service(func(*corev1.Service) {})
		},
		"another scheduler": func(c *costly) { c.service(func(s *corev1.Service) { s.Annotations = wrr }) },
		"no table": func(c *costly) {
			c.service(func(s *corev1.Service) { s.Annotations = leastConnections })
		},
		"another key": func(c *costly) {
			cfg := c.compiler.Config()
			cfg.SelectKey[0]++
			c.compiler.Configure(cfg)
		},
		"policy Local": func(c *costly) {
			c.service(func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = "Local" })
		},
		"all is rebuilt": func(c *costly) { c.compiler.Rebuild(c.tracker.State()) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCostly(t)
			c.slice(0, "3")
			c.compile()
			building := c.compiler.NextTable()
			if building == nil {
				t.Fatal("no table is deferred")
			}
			building.Build()
			meanwhile(c)
			c.compile()
			c.compiler.Install(building)
			c.finish(c.compiler.NextTable())
			c.equalsFull()
		})
	}
}

// TestTablesOfOtherRulesAreNotInstalled: a table that was begun for another scheduler or by another
// key never gets into force, not even until the set has its own: it would choose by rules that hold
// no more, and otherwise than the gateways that never built it.
func TestTablesOfOtherRulesAreNotInstalled(t *testing.T) {
	for name, meanwhile := range map[string]func(*costly){
		"another scheduler": func(c *costly) { c.service(func(s *corev1.Service) { s.Annotations = wrr }) },
		"another key": func(c *costly) {
			cfg := c.compiler.Config()
			cfg.SelectKey[0]++
			c.compiler.Configure(cfg)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCostly(t)
			c.slice(0, "3")
			c.compile()
			building := c.compiler.NextTable()
			building.Build()
			meanwhile(c)
			before := c.compile()
			c.compiler.Install(building)
			if now := c.set(); now != before {
				t.Errorf("the set got a table of %d slots that was built by other rules, and had one of %d",
					len(now.Table), len(before.Table))
			}
			c.finish(c.compiler.NextTable())
			c.equalsFull()
		})
	}
}

var (
	wrr              = map[string]string{"sluice.dev/scheduler": "wrr"}
	leastConnections = map[string]string{"sluice.dev/scheduler": "lc"}
)

// TestTablesThatAlwaysChange: a Service that changes during each build gets each table that was
// built, not only one after its last change, and has one table in the queue.
func TestTablesThatAlwaysChange(t *testing.T) {
	c := newCostly(t)
	for n := range 5 {
		before := c.set().Table
		c.slice(n%3, strings.Repeat("1", 1+n%2)+"2")
		c.compile()
		building := c.compiler.NextTable()
		for range 3 {
			c.slice((n+1)%3, string(rune('3'+n)))
			c.compile()
		}
		building.Build()
		c.compiler.Install(building)
		if slices.Equal(c.set().Table, before) {
			t.Fatalf("change %d: the table that was built is not in force", n)
		}
		if n := c.compiler.Queued(); n != 1 {
			t.Fatalf("%d tables wait to be built", n)
		}
	}
	c.finish(c.compiler.NextTable())
	c.equalsFull()
}

// TestSelfCheckOfDeferredTables: a wrong slot of a large table is found by a job of its own, and a
// right table is not reported.
func TestSelfCheckOfDeferredTables(t *testing.T) {
	for _, wrong := range []bool{false, true} {
		c := newCostly(t)
		if wrong {
			set := c.set()
			set.Table[0] = (set.Table[0] + 1) % 300
		}
		found := ""
		for range 2 {
			n, d := c.compiler.Check(c.tracker, c.compiler.Snapshot())
			if found += d; n != 1 {
				t.Fatalf("%d Services are checked", n)
			}
			c.finish(c.compiler.NextTable())
		}
		want := ""
		if wrong {
			want = "Service bench/service-0: a table of 65537 slots differs"
		}
		if found != want {
			t.Errorf("wrong: %v, and the check finds %q", wrong, found)
		}
	}
}
