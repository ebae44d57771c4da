package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"sort"
	"strings"

	"sluice.dev/sluice/internal/wording"
)

// Error is one problem with one field.
type Error struct {
	File string // as given to Load
	Line int    // 0 if the field is not in the file
	// Path of the field, such as interfaces[0].mode; empty for the file as a whole.
	Path string
	// Problem describes the problem and the remedy.
	Problem string
}

// Error prints file:line: path: problem, what to do.
func (e Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	b.WriteString(": ")
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Problem)
	return b.String()
}

// Errors has every problem of a file, in the order of its lines.
type Errors []Error

// Error prints one problem per line.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

// finish sets the file and line of the errors and sorts them. A field that is not in the file gets
// the line of the nearest enclosing mapping that is.
func (d *decoder) finish(file string) Errors {
	for i := range d.errs {
		e := &d.errs[i]
		e.File = file
		for p := e.Path; e.Line == 0 && p != ""; p = p[:max(0, strings.LastIndexAny(p, ".["))] {
			e.Line = d.lines[p]
		}
	}
	sort.SliceStable(d.errs, func(i, j int) bool { return d.errs[i].Line < d.errs[j].Line })
	return d.errs
}

// textProblem describes a library's parse error for a user.
func textProblem(v reflect.Value, text string, err error) string {
	switch v.Interface().(type) {
	case netip.Prefix:
		return fmt.Sprintf("%q is no CIDR, write an address and a prefix length such as 192.0.2.0/24 or 2001:db8::/64",
			text)
	case netip.AddrPort:
		return fmt.Sprintf("%q is no address:port, write one such as 192.0.2.1:9473 or [2001:db8::1]:9473", text)
	case netip.Addr:
		return fmt.Sprintf("%q is no IP address, write one such as 192.0.2.1 or 2001:db8::1", text)
	}
	return err.Error()
}

// fieldByName finds a struct's field by its name in the file.
func fieldByName(v reflect.Value, name string) (reflect.Value, bool) {
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("json") == name {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// fieldNames returns the names of a struct's fields in the file.
func fieldNames(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i] = t.Field(i).Tag.Get("json")
	}
	return names
}

// suggest returns a question with the known name that is nearest to name, or all known names.
func suggest(name string, known []string) string {
	if best := wording.Nearest(name, known); best != "" {
		return fmt.Sprintf("did you mean %s?", best)
	}
	return "the known fields are " + strings.Join(known, ", ")
}
