package config

import (
	_ "embed"
	"regexp"
	"slices"
)

//go:generate go test -run ^TestSchemaFile$ . -update

//go:embed schema.json
var schemaJSON []byte

// Schema returns the JSON Schema of a file. It has the types of Configuration, the comments of
// defaults.yaml, and the rules that Validate applies to one field at a time. It accepts every file
// that Parse accepts. Only Parse compares two fields, and computes with addresses and durations.
// TestSchemaFile makes it.
func Schema() []byte { return append([]byte(nil), schemaJSON...) }

// schema is a JSON Schema (draft 7, which Helm and editors read) of one field.
type schema struct {
	Schema      string             `json:"$schema,omitempty"`
	Title       string             `json:"title,omitempty"`
	Description string             `json:"description,omitempty"`
	Type        types              `json:"type,omitempty"`
	Const       string             `json:"const,omitempty"`
	Enum        []any              `json:"enum,omitempty"`
	Pattern     string             `json:"pattern,omitempty"`
	MinLength   int                `json:"minLength,omitempty"`
	MaxLength   int                `json:"maxLength,omitempty"`
	Minimum     *int               `json:"minimum,omitempty"`
	Maximum     *int               `json:"maximum,omitempty"`
	MultipleOf  int                `json:"multipleOf,omitempty"`
	MinItems    int                `json:"minItems,omitempty"`
	MaxItems    int                `json:"maxItems,omitempty"`
	Unique      bool               `json:"uniqueItems,omitempty"`
	Items       *schema            `json:"items,omitempty"`
	Properties  map[string]*schema `json:"properties,omitempty"`
	Additional  *bool              `json:"additionalProperties,omitempty"`
	Required    []string           `json:"required,omitempty"`
	Default     any                `json:"default,omitempty"`

	required bool
}

// types are the types that a value may have.
type types []string

// rule tells a schema of the field about a check. Lists have one rule for all elements.
func (k *check) rule(path string, say func(*schema)) {
	if k.rules != nil {
		path = index.ReplaceAllString(path, "[]")
		k.rules[path] = append(k.rules[path], say)
	}
}

var index = regexp.MustCompile(`\[[0-9]+\]`)

// required tells the schema that a field must be given, and not be empty.
func (k *check) required(path string) {
	k.rule(path, func(s *schema) {
		s.required, s.Default = true, nil
		s.Type = slices.DeleteFunc(s.Type, func(t string) bool { return t == "null" })
		switch s.Type[0] {
		case "array":
			s.MinItems = 1
		case "string":
			s.MinLength = 1
		}
	})
}

// pattern tells the schema about the form of a text.
func (k *check) pattern(path, pattern string) {
	k.rule(path, func(s *schema) { s.Pattern = pattern })
}
