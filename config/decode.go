package config

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"sluice.dev/sluice/config/node"
	"sluice.dev/sluice/internal/trusted"
)

// maxFileBytes bounds a configuration file.
const maxFileBytes = 1 << 20

// Load reads a file, fills in defaults and validates. Its error is an Errors with every problem, or
// why the file cannot be read: for example a trusted.Refusal if users other than root and this
// process's user may write the file.
func Load(path string) (*Configuration, error) {
	data, err := Read(path)
	if err != nil {
		return nil, err
	}
	return ParseFile(path, data)
}

// Read returns the bytes that Load parses.
func Read(path string) ([]byte, error) {
	f, err := trusted.Open(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return readAll(f)
}

// LoadAnyOwner is Load for a file on which the caller does not act: any user may own it, and it may
// be a pipe.
func LoadAnyOwner(path string) (*Configuration, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	data, err := readAll(f)
	if err != nil {
		return nil, err
	}
	return ParseFile(path, data)
}

func readAll(f *os.File) ([]byte, error) {
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return data, nil
}

// Parse is Load for bytes that do not come from a file.
func Parse(data []byte) (*Configuration, error) { return ParseFile("-", data) }

// ParseFile is Load for the bytes of a file; name is for messages.
func ParseFile(name string, data []byte) (*Configuration, error) {
	d := decoder{}
	c := d.document(data)
	if c != nil {
		d.errs = append(d.errs, validate(c, d.refused)...)
	}
	if len(d.errs) > 0 {
		return nil, d.finish(name)
	}
	return c, nil
}

// decoder walks a YAML tree along the Go type and collects errors. The library's own decoding would
// stop at the first wrong type and does not know a field's path.
type decoder struct {
	errs Errors
	// lines has the line of each field in the file.
	lines map[string]int
	// refused has the fields whose value is not in the result, so that validation does not check
	// the default in its place.
	refused map[string]bool
}

func (d *decoder) fail(path string, line int, format string, args ...any) {
	d.refused[path] = true
	d.errs = append(d.errs, Error{Line: line, Path: path, Problem: fmt.Sprintf(format, args...)})
}

// document returns the configuration in a file, or nil if it has none.
func (d *decoder) document(data []byte) *Configuration {
	d.lines, d.refused = map[string]int{}, map[string]bool{}
	if len(data) > maxFileBytes {
		d.fail("", 0, "is larger than %d bytes, and cannot be a gateway configuration", maxFileBytes)
		return nil
	}
	if trimmed := bytes.TrimSpace(data); len(trimmed) > 0 && trimmed[0] == '{' {
		// JSON may be indented with tabs, YAML may not. In JSON no string contains a raw tab.
		data = bytes.ReplaceAll(data, []byte{'\t'}, []byte{' '})
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		d.fail("", 0, "is empty, start from the output of `sluice config defaults`")
		return nil
	} else if err != nil {
		d.fail("", 0, "is neither YAML nor JSON: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return nil
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		d.fail("", 0, "holds more than one document, keep one GatewayConfiguration")
	}
	c := Default()
	c.APIVersion, c.Kind = "", ""
	root := doc.Content[0]
	if p := node.Lookup(node.Lookup(root, "flows"), "profile"); p != nil && p.Value == string(ProfileRFC) {
		c.Flows.Timeouts = TimeoutsOf(ProfileRFC)
		c.Tuning.TimeWaitBackend = timeWaitBackendOf(ProfileRFC)
	}
	d.value("", root, reflect.ValueOf(c).Elem())
	return c
}

func (d *decoder) value(path string, n *yaml.Node, v reflect.Value) {
	d.lines[path] = n.Line
	if n.Kind == yaml.AliasNode {
		d.fail(path, n.Line, "uses a YAML alias, write the value itself")
		return
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return // as if the field were missing
	}
	if _, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.scalar(path, n, v)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.mapping(path, n, v)
	case reflect.Slice:
		d.sequence(path, n, v)
	default:
		d.scalar(path, n, v)
	}
}

func (d *decoder) mapping(path string, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.fail(path, n.Line, "must be a mapping with the fields %s", strings.Join(fieldNames(v.Type()), ", "))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, child := n.Content[i], n.Content[i+1]
		at := join(path, key.Value)
		field, ok := fieldByName(v, key.Value)
		switch {
		case !ok:
			d.fail(at, key.Line, "is no known field, %s", suggest(key.Value, fieldNames(v.Type())))
		case seen[key.Value]:
			d.fail(at, key.Line, "is given twice, keep one")
		default:
			seen[key.Value] = true
			d.value(at, child, field)
		}
	}
}

func (d *decoder) sequence(path string, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.fail(path, n.Line, "must be a list, write [a, b] or one \"- a\" per line")
		return
	}
	list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, child := range n.Content {
		element := list.Index(i)
		setDefaults(element)
		at := fmt.Sprintf("%s[%d]", path, i)
		if child.Kind == yaml.ScalarNode && (child.Tag == "!!null" || child.Value == "") {
			d.fail(at, child.Line, "is empty, fill it in or remove it")
			continue
		}
		d.value(at, child, element)
	}
	v.Set(list)
}

// setDefaults sets the defaults of a list's element, if it has any.
func setDefaults(element reflect.Value) {
	if e, ok := element.Addr().Interface().(interface{ setDefaults() }); ok {
		e.setDefaults()
	}
}

func (d *decoder) scalar(path string, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.ScalarNode {
		d.fail(path, n.Line, "must be a single value, not a list or mapping")
		return
	}
	if t, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if err := t.UnmarshalText([]byte(n.Value)); err != nil {
			d.fail(path, n.Line, "%s", textProblem(v, n.Value, err))
		}
		return
	}
	switch v.Kind() {
	case reflect.String:
		if n.Tag != "!!str" {
			d.fail(path, n.Line, "must be a text, put %s in quotes", n.Value)
			return
		}
		v.SetString(n.Value)
	case reflect.Bool:
		b, err := strconv.ParseBool(n.Value)
		if n.Tag != "!!bool" || err != nil {
			d.fail(path, n.Line, "is %q, write true or false", n.Value)
			return
		}
		v.SetBool(b)
	case reflect.Int:
		i, err := strconv.ParseInt(n.Value, 10, 32)
		if n.Tag != "!!int" || err != nil || strconv.FormatInt(i, 10) != n.Value {
			d.fail(path, n.Line, "is %q, write a whole number in decimal", n.Value)
			return
		}
		v.SetInt(i)
	default:
		panic("config: a field has type " + v.Type().String() + "; teach decoder.scalar to read it")
	}
}

// join appends a field's name to a path.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
