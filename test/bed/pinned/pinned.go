// Package pinned is for tests of forms that outlive a program: memory that the next version maps,
// JSON that somebody else's script reads. Each such form has a version. A test writes the form down
// in a golden file under that version, so that a change of the form without a new version fails:
//
//	pinned.Same(t, "testdata/layout.golden", "3", pinned.Layout(head{}, record4{}))
//
// With SLUICE_UPDATE=1 the file is written, unless its version is the same as before.
package pinned

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Same fails unless form is the file's text for this version.
func Same(t *testing.T, file, version, form string) {
	t.Helper()
	was, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	write, problem := judge(string(was), version, form, os.Getenv("SLUICE_UPDATE") != "")
	if problem != "" {
		t.Errorf("%s: %s", file, problem)
	}
	if !write {
		return
	}
	if err := errors.Join(
		os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text(version, form)), 0o644),
	); err != nil {
		t.Fatal(err)
	}
}

func text(version, form string) string { return "version " + version + "\n\n" + form }

// judge compares the file's text with the present form, and decides whether to write it.
func judge(was, version, form string, update bool) (write bool, problem string) {
	head, _, _ := strings.Cut(was, "\n")
	switch {
	case was == text(version, form):
		return false, ""
	case head == "version "+version:
		return false, "the form is no longer that of version " + version +
			": give it a new version, then run the test with SLUICE_UPDATE=1 (-before +now):\n" +
			cmp.Diff(strings.Split(was, "\n"), strings.Split(text(version, form), "\n"))
	case !update:
		return false, "it is not of version " + version + ": run the test with SLUICE_UPDATE=1"
	}
	return true, ""
}

// Layout lists the fields of structs with their offsets and types, in bytes: the layout of a mapped
// file.
func Layout(values ...any) string {
	var b strings.Builder
	for _, v := range values {
		t := reflect.TypeOf(v)
		fmt.Fprintf(&b, "%s, %d bytes\n", t, t.Size())
		layout(&b, "", 0, t)
	}
	return b.String()
}

func layout(b *strings.Builder, path string, at uintptr, t reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, inner := path+f.Name, f.Type
		for inner.Kind() == reflect.Array {
			inner = inner.Elem()
		}
		fmt.Fprintf(b, "%6d %s %s\n", at+f.Offset, name, f.Type)
		if inner.Kind() == reflect.Struct && inner.PkgPath() != "sync/atomic" {
			layout(b, name+".", at+f.Offset, inner)
		}
	}
}

// Form lists the fields of a value that is printed as JSON, with their types.
func Form(name string, v any) string {
	var b strings.Builder
	form(&b, name, reflect.TypeOf(v))
	return b.String()
}

var (
	asJSON = reflect.TypeFor[json.Marshaler]()
	asText = reflect.TypeFor[encoding.TextMarshaler]()
)

func form(b *strings.Builder, path string, t reflect.Type) {
	if t.Implements(asJSON) || t.Implements(asText) {
		fmt.Fprintf(b, "%s %s\n", path, t)
		return
	}
	switch t.Kind() {
	case reflect.Pointer:
		form(b, path, t.Elem())
	case reflect.Slice, reflect.Array:
		form(b, path+"[]", t.Elem())
	case reflect.Map:
		form(b, path+"{}", t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case tag == "-":
			case f.Anonymous && tag == "":
				form(b, path, f.Type)
			case strings.HasPrefix(options, "omit"):
				form(b, path+"."+tag+"?", f.Type)
			default:
				form(b, path+"."+tag, f.Type)
			}
		}
	default:
		fmt.Fprintf(b, "%s %s\n", path, t.Kind())
	}
}
