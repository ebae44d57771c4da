package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/control/objects"
)

// field is the name of the gateway in JSON and YAML.
const field = "gateway"

// mergeJSON returns one list of the objects of all answers, each with its gateway. An answer that
// is no JSON gets an error, and is left out.
func mergeJSON(answers []answer) []map[string]any {
	list := []map[string]any{}
	for i := range answers {
		a := &answers[i]
		some, err := objectsOf(a)
		switch {
		case err == nil:
			list = append(list, some...)
		case a.err == nil && !a.none:
			a.err = fmt.Errorf("its answer is not JSON: %w", err)
		}
	}
	return list
}

// objectsOf returns the objects of an answer.
func objectsOf(a *answer) ([]map[string]any, error) {
	var list []map[string]any
	decoder := json.NewDecoder(bytes.NewReader(a.out))
	decoder.UseNumber()
	for {
		var v any
		err := decoder.Decode(&v)
		if errors.Is(err, io.EOF) && len(bytes.TrimSpace(a.out)) > 0 {
			return list, nil
		}
		if err != nil {
			return nil, err
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
}

func printObjects(w io.Writer, format string, answers []answer) error {
	text, err := json.MarshalIndent(mergeJSON(answers), "", "  ")
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

// printText prints one table of all answers that are one table, with a column for the gateway. The
// other answers follow, with the gateway in front of each line. A command that fails may have
// printed why, so its output is printed, too.
func printText(w io.Writer, answers []answer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	first := ""
	var others []*answer
	for i := range answers {
		a := &answers[i]
		list := lines(a.out)
		if !isTable(list) {
			others = append(others, a)
			continue
		}
		for j, line := range list {
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
	if err := t.Flush(); err != nil {
		return err
	}
	for _, a := range others {
		for _, line := range lines(a.out) {
			fmt.Fprintf(t, "%s\t%s\n", a.Node, line)
		}
	}
	return t.Flush()
}

// isTable reports whether the lines are one table.
func isTable(list []string) bool {
	for j, line := range list {
		if line == "" || (j == 0) != head.MatchString(line) {
			return false
		}
	}
	return true
}

// lines returns the printable text of each line.
func lines(text []byte) []string {
	trimmed := strings.TrimRight(string(text), "\n")
	if trimmed == "" {
		return nil
	}
	list := strings.Split(trimmed, "\n")
	for i := range list {
		list[i] = strings.TrimRight(objects.Printable(list[i]), " ")
	}
	return list
}
