package control

import (
	"net/netip"
	"reflect"
	"testing"

	"sluice.dev/sluice/fastpath/services"
)

// TestEqualLooksAtEverything: an object that differs in one field is another one. Were
// a field forgotten, a change of it alone would never be compiled.
func TestEqualLooksAtEverything(t *testing.T) {
	scheduler := services.RoundRobin
	prefix := netip.MustParsePrefix("10.0.0.0/8")
	changes := map[string]func(*service){
		"id":         func(s *service) { s.id.Name = "x" },
		"created":    func(s *service) { s.created = 1 },
		"families":   func(s *service) { s.families[1] = true },
		"local":      func(s *service) { s.local = true },
		"inner":      func(s *service) { s.inner = true },
		"skip":       func(s *service) { s.skip = "x" },
		"healthPort": func(s *service) { s.healthPort = 1 },
		"refused":    func(s *service) { s.refused = true },
		"ports":      func(s *service) { s.ports = []servicePort{{name: "x"}} },
		"vips":       func(s *service) { s.vips = []vip{{kind: services.ClusterIP}} },
		"ranges":     func(s *service) { s.ranges[1] = []netip.Prefix{prefix} },
		"affinity":   func(s *service) { s.affinity = 1 },
		"scheduler":  func(s *service) { s.scheduler = &scheduler },
		"weights":    func(s *service) { s.weights = weightRules{{node: "x"}} },
		"faults":     func(s *service) { s.faults = []fault{{field: "x"}} },
	}
	everyField(t, changes, func(a, b *service) bool { return a.equal(b) }, nil)
	everyField(t, map[string]func(*slice){
		"id":        func(s *slice) { s.id.Name = "x" },
		"service":   func(s *slice) { s.service = "x" },
		"v6":        func(s *slice) { s.v6 = true },
		"hints":     func(s *slice) { s.hints = true },
		"ports":     func(s *slice) { s.ports = []slicePort{{name: "x"}} },
		"nodes":     func(s *slice) { s.nodes = []string{"x"} },
		"zones":     func(s *slice) { s.zones = []string{"x"} },
		"hintSets":  func(s *slice) { s.hintSets = [][]string{{"x"}} },
		"endpoints": func(s *slice) { s.endpoints = []endpoint{{zone: 1}} },
		"weights":   func(s *slice) { s.weights = []int32{1} },
		"faults":    func(s *slice) { s.faults = []fault{{field: "x"}} },
	}, func(a, b *slice) bool { return a.equal(b) }, []string{"trigger"})
}

// everyField changes each field of a zero T. Those in apart are no part of equality.
func everyField[T any](t *testing.T, changes map[string]func(*T), equal func(a, b *T) bool, apart []string) {
	t.Helper()
	kind := reflect.TypeFor[T]()
	if n := kind.NumField(); n != len(changes)+len(apart) {
		t.Errorf("%v has %d fields, the test knows %d", kind, n, len(changes)+len(apart))
	}
	for name, change := range changes {
		if _, ok := kind.FieldByName(name); !ok {
			t.Errorf("%v has no field %s", kind, name)
		}
		var a, b T
		change(&b)
		if equal(&a, &b) || equal(&b, &a) {
			t.Errorf("%v that differ in %s are equal", kind, name)
		}
	}
}
