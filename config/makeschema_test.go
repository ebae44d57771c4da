package config

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// makeSchema returns the text of schema.json.
func makeSchema() []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(newSchema()); err != nil {
		panic("config: the schema is no JSON: " + err.Error())
	}
	return out.Bytes()
}

func newSchema() *schema {
	k := check{rules: map[string][]func(*schema){}}
	k.all(fill(Default()))
	b := schemas{rules: k.rules, comments: comments()}
	root := b.of("", reflect.TypeFor[Configuration](), reflect.ValueOf(Default()).Elem())
	root.Schema, root.Title = "http://json-schema.org/draft-07/schema#", "Sluice "+Kind
	root.Type = types{"object"}
	return root
}

// MarshalJSON prints one type as a text, several as a list.
func (t types) MarshalJSON() ([]byte, error) {
	if len(t) == 1 {
		return json.Marshal(t[0])
	}
	return json.Marshal([]string(t))
}

// fill gives each empty list one element, so that the rules of elements are applied.
func fill(c *Configuration) *Configuration {
	fillLists(reflect.ValueOf(c).Elem())
	return c
}

func fillLists(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fillLists(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			setDefaults(v.Index(0))
		}
		for i := range v.Len() {
			fillLists(v.Index(i))
		}
	}
}

// schemas builds the schema of a type and all below it.
type schemas struct {
	rules    map[string][]func(*schema)
	comments map[string]string
}

// of returns the schema of the field at a path. value has its default; it is not valid if there is
// none.
func (b *schemas) of(path string, t reflect.Type, value reflect.Value) *schema {
	s := &schema{Description: b.comments[path]}
	text := reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	switch {
	case text:
		b.text(s, t)
	case t.Kind() == reflect.Struct:
		b.object(s, path, t, value)
	case t.Kind() == reflect.Slice:
		b.list(s, path, t)
	case t.Kind() == reflect.Bool:
		s.Type = types{"boolean"}
	case t.Kind() == reflect.Int:
		s.Type = types{"integer"}
	case t.Kind() == reflect.String:
		s.Type = types{"string"}
	default:
		panic("config: a field has type " + t.String() + "; teach schemas.of to describe it")
	}
	isNil := t.Kind() == reflect.Slice && (!value.IsValid() || value.IsNil())
	if value.IsValid() && (text || t.Kind() != reflect.Struct) && !isNil {
		s.Default = value.Interface()
	}
	if !strings.HasSuffix(path, "[]") { // an element must not be null
		s.Type = append(s.Type, "null") // as if the field were missing
	}
	for _, say := range b.rules[path] {
		say(s)
	}
	if s.Enum != nil && slices.Contains(s.Type, "null") {
		s.Enum = append(s.Enum, nil)
	}
	return s
}

func (b *schemas) object(s *schema, path string, t reflect.Type, value reflect.Value) {
	s.Type, s.Additional = types{"object"}, new(bool)
	s.Properties = map[string]*schema{}
	for i := range t.NumField() {
		var standard reflect.Value
		if value.IsValid() {
			standard = value.Field(i)
		}
		name := t.Field(i).Tag.Get("json")
		p := b.of(join(path, name), t.Field(i).Type, standard)
		if p.required {
			s.Required = append(s.Required, name)
		}
		s.Properties[name] = p
	}
}

func (b *schemas) list(s *schema, path string, t reflect.Type) {
	element := reflect.New(t.Elem()).Elem()
	standard := reflect.Value{}
	if t.Elem().Kind() == reflect.Struct {
		setDefaults(element)
		standard = element
	}
	s.Type, s.Items = types{"array"}, b.of(path+"[]", t.Elem(), standard)
	s.Items.Default = nil
}

// Forms of texts, as regular expressions that ECMAScript and RE2 understand alike.
const (
	octet = `(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`
	ipv4  = `(` + octet + `\.){3}` + octet
	ipv6  = `[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*`
	cidr  = `(` + ipv4 + `/([0-9]|[12][0-9]|3[0-2])|` + ipv6 + `/([0-9]|[1-9][0-9]|1[01][0-9]|12[0-8]))`
	port  = `0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])`
)

// text describes a type that is written as a text. YAML reads some of these texts as numbers.
func (b *schemas) text(s *schema, t reflect.Type) {
	s.Type = types{"string"}
	number := func(low, high int) {
		s.Type = append(s.Type, "integer")
		s.Minimum, s.Maximum = &low, &high
	}
	switch reflect.Zero(t).Interface().(type) {
	case Duration:
		s.Pattern = `^\+?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`
		number(0, 0)
	case PortRange:
		s.Pattern = `^\s*` + port + `\s*(-\s*` + port + `\s*)?$`
		number(1, 1<<16-1)
	case Queues:
		s.Pattern = `^(all|[0-9]+)$`
		number(1, 1<<16-1)
	case FrameSize:
		s.Pattern = `^(auto|[0-9]+)$`
		number(1, 1<<16-1)
	case AddressSelector:
		s.Pattern = `^(` + primary + `|` + cidr + `)$`
	case netip.Prefix:
		s.Pattern = `^` + cidr + `$`
	case netip.Addr:
		s.Pattern = `^(` + ipv4 + `|` + ipv6 + `)$`
	case netip.AddrPort:
		s.Pattern = `^(` + ipv4 + `|\[` + ipv6 + `\]):` + port + `$`
	default:
		panic(fmt.Sprintf("config: a field has type %s; teach schemas.text its form", t))
	}
}
