package nexthop

import (
	"reflect"
	"testing"
)

// TestSame: hops that differ in any field that a caller can set are not the same.
func TestSame(t *testing.T) {
	of := reflect.TypeFor[Hop]()
	for i := range of.NumField() {
		field := of.Field(i)
		if !field.IsExported() {
			continue
		}
		var one, other Hop
		v := reflect.ValueOf(&other).Elem().Field(i)
		switch v.Kind() {
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Array:
			if e := v.Index(v.Len() - 1); e.Kind() == reflect.Struct {
				e.Field(1).SetUint(1)
			} else {
				e.SetUint(1)
			}
		default:
			v.SetUint(1)
		}
		if one.Same(&other) || !other.Same(&other) {
			t.Errorf("hops that differ in %s are the same", field.Name)
		}
	}
	var one, other Hop
	other.Use()
	other.plainEnd = 1
	if !one.Same(&other) {
		t.Error("Same depends on used")
	}
}

func TestTakeUsed(t *testing.T) {
	var h Hop
	if h.TakeUsed() {
		t.Error("TakeUsed is true before any use")
	}
	h.Use()
	h.Use()
	if !h.TakeUsed() || h.TakeUsed() {
		t.Error("want TakeUsed true exactly once after a use")
	}
}
