package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sluice.dev/sluice/config"
)

// putSchema writes the schema of the gateway's configuration into the chart's schema of values, or
// compares it.
func putSchema(dir string, check bool) error {
	file := filepath.Join(dir, "values.schema.json")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	got, err := withConfig(text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return put(dir, file, got, check)
}

// withConfig replaces the schema of the value config in a schema of values with two spaces of
// indentation.
func withConfig(values []byte) ([]byte, error) {
	const begin, end = "\n    \"config\": ", "\n    }"
	head, rest, found := bytes.Cut(values, []byte(begin))
	_, tail, closed := bytes.Cut(rest, []byte(end))
	if !found || !closed {
		return nil, fmt.Errorf("there is no line %q", begin[1:])
	}
	of, err := configSchema()
	if err != nil {
		return nil, err
	}
	return slices.Concat(head, []byte(begin), of, tail), nil
}

// configSchema returns the schema of a configuration in which the chart writes apiVersion and kind.
func configSchema() ([]byte, error) {
	var s map[string]any
	if err := json.Unmarshal(config.Schema(), &s); err != nil {
		return nil, err
	}
	delete(s, "$schema")
	s["required"] = slices.DeleteFunc(s["required"].([]any), func(field any) bool {
		return field == "apiVersion" || field == "kind"
	})
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("    ", "  ")
	err := e.Encode(s)
	return bytes.TrimSpace(b.Bytes()), err
}
