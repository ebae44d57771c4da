package config

import (
	"encoding"
	"fmt"
	"reflect"
)

// Change is one field, or one named entry of a list, that differs between two configurations.
type Change struct {
	Path  string
	Entry string // name of the entry of a list
	// Old and New are the values. Old is empty for an entry that was added, New for one that was
	// removed.
	Old, New string
	// Restart: a running daemon keeps the old value until it restarts.
	Restart bool
}

// String describes the change, and whether it needs a restart.
func (c Change) String() string {
	path, when := c.Path, ""
	if c.Entry != "" {
		path = fmt.Sprintf("%s[%s]", c.Path, c.Entry)
	}
	if c.Restart {
		when = " when the daemon restarts"
	}
	switch {
	case c.Old == "":
		return fmt.Sprintf("%s: is added%s: %s", path, when, c.New)
	case c.New == "":
		return fmt.Sprintf("%s: is removed%s: %s", path, when, c.Old)
	case c.Restart:
		return fmt.Sprintf("%s: %s stays until the daemon restarts; the file says %s", path, c.Old, c.New)
	}
	return fmt.Sprintf("%s: from %s to %s", path, c.Old, c.New)
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
		list := entries(before.path, before.field, after[i].field)
		if len(list) == 0 {
			list = []Change{{Path: before.path, Old: before.text(), New: after[i].text()}}
		}
		for _, change := range list {
			change.Restart = !before.live
			changes = append(changes, change)
		}
	}
	return changes
}

// entries lists the entries, by their field Name, in which two lists differ: entries of after,
// in its order, then entries that only before has. It returns nothing if entries have no such
// field, or if only the order differs.
func entries(path string, before, after reflect.Value) (list []Change) {
	old, named := byName(before)
	next, _ := byName(after)
	if !named || len(old) < before.Len() || len(next) < after.Len() {
		return nil // no names, or one twice, which is not valid
	}
	add := func(name string) {
		c := Change{Path: path, Entry: name}
		a, was := old[name]
		b, is := next[name]
		if was && is && reflect.DeepEqual(a, b) {
			return
		}
		if was {
			c.Old = text(a)
		}
		if is {
			c.New = text(b)
		}
		list = append(list, c)
	}
	for i := range after.Len() {
		add(after.Index(i).FieldByName("Name").String())
	}
	for i := range before.Len() {
		name := before.Index(i).FieldByName("Name").String()
		if _, is := next[name]; !is {
			add(name)
		}
	}
	return list
}

// byName returns the entries of a list of structs by their field Name; false if they have none.
func byName(list reflect.Value) (entries map[string]any, named bool) {
	if list.Kind() != reflect.Slice || list.Type().Elem().Kind() != reflect.Struct {
		return nil, false
	}
	if f, found := list.Type().Elem().FieldByName("Name"); !found || f.Type.Kind() != reflect.String {
		return nil, false
	}
	entries = map[string]any{}
	for i := range list.Len() {
		e := list.Index(i)
		entries[e.FieldByName("Name").String()] = e.Interface()
	}
	return entries, true
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
