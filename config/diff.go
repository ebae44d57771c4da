package config

import (
	"encoding"
	"fmt"
	"reflect"
)

// Change is one field that differs between two configurations.
type Change struct {
	Path     string
	Old, New string
	// Restart: a running daemon keeps the old value until it restarts.
	Restart bool
}

// String describes the change, and whether it needs a restart.
func (c Change) String() string {
	if c.Restart {
		return fmt.Sprintf("%s: %s stays until the daemon restarts; the file says %s", c.Path, c.Old, c.New)
	}
	return fmt.Sprintf("%s: from %s to %s", c.Path, c.Old, c.New)
}

// leaf is one field that is compared as a whole: a scalar or a list.
type leaf struct {
	path  string
	value any
	live  bool
	field reflect.Value
}

// leaves lists all fields in the order of the file.
func leaves(c *Configuration) []leaf {
	return appendLeaves(nil, "", reflect.ValueOf(c).Elem(), leaf{})
}

// appendLeaves appends the fields of v. in has the property that they inherit: live.
func appendLeaves(list []leaf, path string, v reflect.Value, in leaf) []leaf {
	_, text := v.Addr().Interface().(encoding.TextUnmarshaler)
	if v.Kind() != reflect.Struct || text {
		in.path, in.value, in.field = path, v.Interface(), v
		return append(list, in)
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		list = appendLeaves(list, join(path, f.Tag.Get("json")), v.Field(i), leaf{
			live: in.live || f.Tag.Get("reload") == "live",
		})
	}
	return list
}

// Diff lists the fields in which next differs from c, in the order of the file.
func (c *Configuration) Diff(next *Configuration) []Change {
	var changes []Change
	after := leaves(next)
	for i, before := range leaves(c) {
		if same(before.field, after[i].field) {
			continue
		}
		changes = append(changes, Change{
			Path: before.path, Old: before.text(), New: after[i].text(), Restart: !before.live,
		})
	}
	return changes
}

// same compares two values of one field. An empty list and nil are the same.
func same(a, b reflect.Value) bool {
	if a.Kind() == reflect.Slice && a.Len() == 0 && b.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// Reload returns the configuration in force after a daemon that runs with c has read next: the new
// value of every live field, the old value of all others. It modifies neither c nor next.
func (c *Configuration) Reload(next *Configuration) *Configuration {
	merged := *c
	after := leaves(next)
	for i, l := range leaves(&merged) {
		if l.live {
			l.field.Set(after[i].field)
		}
	}
	return &merged
}

// text prints the leaf's value on one line for a message.
func (l *leaf) text() string {
	return text(l.value)
}

// maxListed is the number of entries up to which a list is printed: deny may have thousands.
const maxListed = 64

// text prints a value on one line for a message.
func text(v any) string {
	switch r := reflect.ValueOf(v); {
	case r.Kind() == reflect.String:
		return fmt.Sprintf("%q", r.String())
	case r.Kind() == reflect.Slice && r.Len() == 0:
		return "[]"
	case r.Kind() == reflect.Slice && r.Len() > maxListed:
		return fmt.Sprintf("[%v ... %v] (%d entries)", r.Index(0), r.Index(r.Len()-1), r.Len())
	}
	return fmt.Sprintf("%+v", v)
}
