package fleet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"
)

// field is the name of the gateway in JSON and YAML.
const field = "gateway"

// mergeJSON returns one list of the objects of all answers, each with its gateway.
func mergeJSON(answers []answer) ([]map[string]any, error) {
	list := []map[string]any{}
	for i := range answers {
		a := &answers[i]
		if a.err != nil {
			continue
		}
		decoder := json.NewDecoder(bytes.NewReader(a.out))
		decoder.UseNumber()
		var v any
		if err := decoder.Decode(&v); err != nil {
			return nil, fmt.Errorf("%s: its answer is not JSON: %w", a.Node, err)
		}
		rows, ok := v.([]any)
		if !ok {
			rows = []any{v}
		}
		for _, r := range rows {
			object, ok := r.(map[string]any)
			if !ok {
				object = map[string]any{"value": r}
			}
			object[field] = a.Node
			list = append(list, object)
		}
	}
	return list, nil
}

func printObjects(w io.Writer, format string, answers []answer) error {
	list, err := mergeJSON(answers)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(list, "", "  ")
	if err == nil && format == "yaml" {
		text, err = yaml.JSONToYAML(text)
	} else {
		text = append(text, '\n')
	}
	if err == nil {
		_, err = w.Write(text)
	}
	return err
}

// between separates the columns of a table. A cell has no two spaces, and an empty one is "-".
var between = regexp.MustCompile(` {2,}`)

// head is the first line of a table: names in capitals.
var head = regexp.MustCompile(`^[A-Z][A-Z0-9 /-]*$`)

// printText prints one table of the answers with a column for the gateway. Answers that are not one
// table get the gateway in front of each line.
func printText(w io.Writer, answers []answer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	tables := asTables(answers)
	first := ""
	for i := range answers {
		a := &answers[i]
		if a.err != nil {
			continue
		}
		for j, line := range lines(a.out) {
			if !tables {
				fmt.Fprintf(t, "%s\t%s\n", a.Node, line)
				continue
			}
			cells := between.ReplaceAllString(line, "\t")
			switch {
			case j > 0:
				fmt.Fprintf(t, "%s\t%s\n", a.Node, cells)
			case cells != first: // the first table, or one of another version
				first = cells
				fmt.Fprintf(t, "GATEWAY\t%s\n", cells)
			}
		}
	}
	return t.Flush()
}

// asTables reports whether each answer is one table.
func asTables(answers []answer) bool {
	for i := range answers {
		list := lines(answers[i].out)
		for j, line := range list {
			if line == "" || (j == 0) != head.MatchString(line) {
				return false
			}
		}
	}
	return true
}

func lines(text []byte) []string {
	trimmed := strings.TrimRight(string(text), "\n")
	if trimmed == "" {
		return nil
	}
	list := strings.Split(trimmed, "\n")
	for i := range list {
		list[i] = strings.TrimRight(list[i], " ")
	}
	return list
}
