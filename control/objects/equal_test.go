package objects

import (
	"net/netip"
	"reflect"
	"testing"

	"sluice.dev/sluice/fastpath/services"
)

// TestEqualComparesAllFields: an object that differs in one field is not equal. If a field were
// forgotten, a change of it alone would never be compiled.
func TestEqualComparesAllFields(t *testing.T) {
	scheduler := services.RoundRobin
	prefix := netip.MustParsePrefix("10.0.0.0/8")
	changes := map[string]func(*Service){
		"ID":            func(s *Service) { s.ID.Name = "x" },
		"Created":       func(s *Service) { s.Created = 1 },
		"Families":      func(s *Service) { s.Families[1] = true },
		"LocalExternal": func(s *Service) { s.LocalExternal = true },
		"LocalInternal": func(s *Service) { s.LocalInternal = true },
		"skip":          func(s *Service) { s.skip = "x" },
		"HealthPort":    func(s *Service) { s.HealthPort = 1 },
		"refused":       func(s *Service) { s.refused = true },
		"Ports":         func(s *Service) { s.Ports = []ServicePort{{Name: "x"}} },
		"VIPs":          func(s *Service) { s.VIPs = []VIP{{Kind: services.ClusterIP}} },
		"Ranges":        func(s *Service) { s.Ranges[1] = []netip.Prefix{prefix} },
		"Affinity":      func(s *Service) { s.Affinity = 1 },
		"Scheduler":     func(s *Service) { s.Scheduler = &scheduler },
		"Weights":       func(s *Service) { s.Weights = WeightRules{{node: "x"}} },
		"Limits":        func(s *Service) { s.Limits.set[0] = true },
		"Checks":        func(s *Service) { s.Checks = Checks{{Port: "x"}} },
		"ProxyProtocol": func(s *Service) { s.ProxyProtocol.all = true },
		"Direct":        func(s *Service) { s.Direct = true },
		"Routed":        func(s *Service) { s.Routed = true },
		"Problems":      func(s *Service) { s.Problems = []FieldProblem{{Field: "x"}} },
	}
	everyField(t, changes, func(a, b *Service) bool { return a.equal(b) }, nil)
	everyField(t, map[string]func(*Slice){
		"ID":        func(s *Slice) { s.ID.Name = "x" },
		"Service":   func(s *Slice) { s.Service = "x" },
		"V6":        func(s *Slice) { s.V6 = true },
		"Hints":     func(s *Slice) { s.Hints = true },
		"Ports":     func(s *Slice) { s.Ports = []SlicePort{{Name: "x"}} },
		"nodes":     func(s *Slice) { s.nodes = []string{"x"} },
		"zones":     func(s *Slice) { s.zones = []string{"x"} },
		"HintSets":  func(s *Slice) { s.HintSets = [][]string{{"x"}} },
		"Endpoints": func(s *Slice) { s.Endpoints = []Endpoint{{zone: 1}} },
		"Weights":   func(s *Slice) { s.Weights = []int32{1} },
		"Problems":  func(s *Slice) { s.Problems = []FieldProblem{{Field: "x"}} },
	}, func(a, b *Slice) bool { return a.equal(b) }, []string{"Trigger"})
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
