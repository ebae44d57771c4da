package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/control/objects"
)

// outputFormat is the flag -o.
type outputFormat string

const (
	formatTable outputFormat = "table"
	formatJSON  outputFormat = "json"
	formatYAML  outputFormat = "yaml"
)

// String, Set and Type implement pflag.Value.
func (f *outputFormat) String() string { return string(*f) }

// Type names the flag's values in help.
func (f *outputFormat) Type() string { return "format" }

// Set returns an error for an unknown format.
func (f *outputFormat) Set(s string) error {
	switch v := outputFormat(s); v {
	case formatTable, formatJSON, formatYAML:
		*f = v
		return nil
	}
	return fmt.Errorf("must be table, json or yaml")
}

// print writes v as JSON or YAML, or calls table.
func (s *session) print(v any, table func(*rows)) error {
	if s.format != formatTable {
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
		r := newRows(s.app.Out)
		table(r)
		return r.flush()
	}
	if err != nil {
		return err
	}
	_, err = s.app.Out.Write(out)
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
		if text[i] = oneLine(fmt.Sprint(c)); text[i] == "" {
			text[i] = "-" // awk counts columns: none may be empty
		}
	}
	r.line(strings.Join(text, "\t"))
}

// oneLine makes one printable line of a message.
func oneLine(s string) string { return objects.Printable(strings.ReplaceAll(s, "\n", "; ")) }

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

// byteCount prints a number of bytes with a binary unit.
func byteCount(n uint64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%dB", n)
	}
	value, i := float64(n)/unit, 0
	for ; value >= unit && i < len("KMGTPE")-1; i++ {
		value /= unit
	}
	return fmt.Sprintf("%.1f%ciB", value, "KMGTPE"[i])
}
