package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/internal/table"
)

// outputFormat is the flag -o.
type outputFormat string

const (
	formatTable outputFormat = "table"
	formatWide  outputFormat = "wide" // a table with all columns
	formatJSON  outputFormat = "json"
	formatYAML  outputFormat = "yaml"
)

var outputFormats = []string{string(formatTable), string(formatWide), string(formatJSON), string(formatYAML)}

// text reports whether the output is for people.
func (f outputFormat) text() bool { return f == formatTable || f == formatWide }

// String, Set and Type implement pflag.Value.
func (f *outputFormat) String() string { return string(*f) }

// Type names the flag's values in help.
func (f *outputFormat) Type() string { return "format" }

// Set returns an error for an unknown format.
func (f *outputFormat) Set(s string) error {
	if !slices.Contains(outputFormats, s) {
		return errors.New("must be table, wide, json or yaml")
	}
	*f = outputFormat(s)
	return nil
}

// print writes v as JSON or YAML, or calls table.
func (s *session) print(v any, table func(*rows)) error {
	if !s.format.text() {
		v = withLists(v)
	}
	var out []byte
	var err error
	switch s.format {
	case formatJSON:
		out, err = json.MarshalIndent(v, "", "  ")
		out = append(out, '\n')
	case formatYAML:
		out, err = yaml.Marshal(v)
	default:
		r := newRows(s.out)
		table(r)
		return r.flush()
	}
	if err != nil {
		return err
	}
	_, err = s.out.Write(out)
	return err
}

// rows is a table with aligned columns.
type rows struct {
	w   *tabwriter.Writer
	err error
}

func newRows(w io.Writer) *rows { return &rows{w: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

func (r *rows) row(cells ...any) {
	text := make([]string, len(cells))
	for i, c := range cells {
		text[i] = oneLine(fmt.Sprint(c))
	}
	r.line(strings.Join(text, "\t"))
}

// oneLine makes one printable line of a message.
func oneLine(s string) string { return objects.Printable(table.OneLine(s)) }

// line writes a line as it is. A line without tabs does not affect the columns' widths.
func (r *rows) line(text string) {
	if _, err := fmt.Fprintln(r.w, objects.Printable(text, '\t')); err != nil && r.err == nil {
		r.err = err
	}
}

// flush ends a table. The next row starts a table with its own widths.
func (r *rows) flush() error {
	if err := r.w.Flush(); err != nil && r.err == nil {
		r.err = err
	}
	return r.err
}
