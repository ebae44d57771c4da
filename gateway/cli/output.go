package cli

import (
	"bytes"
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
	"sluice.dev/sluice/internal/usage"
	"sluice.dev/sluice/internal/wording"
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
		return errors.New("must be table, wide, json or yaml" + wording.Suggest(s, outputFormats))
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
		r.coloured = s.colours()
		table(r)
		return r.flush()
	}
	if err != nil {
		return err
	}
	_, err = s.out.Write(out)
	return err
}

// colours reports whether lines may be painted.
func (s *session) colours() bool { return usage.Colours(s.app.Out) }

// rows is a table with aligned columns.
type rows struct {
	w   *tabwriter.Writer // writes to page
	err error

	out      io.Writer
	page     bytes.Buffer
	coloured bool
	next     rendition   // of the next line
	painted  []rendition // of each line of the page, if coloured
}

func newRows(w io.Writer) *rows {
	r := &rows{out: w}
	r.w = tabwriter.NewWriter(&r.page, 0, 0, 2, ' ', 0)
	return r
}

// in sets the rendition of the next line.
func (r *rows) in(p rendition) *rows {
	r.next = p
	return r
}

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
	r.painted, r.next = append(r.painted, r.next), plain
	fmt.Fprintln(r.w, objects.Printable(text, '\t')) // into memory
}

// flush ends a table. The next row starts a table with its own widths.
func (r *rows) flush() error {
	if len(r.painted) == 0 {
		return r.err
	}
	r.w.Flush() // into memory
	text := r.page.Bytes()
	if r.coloured {
		var b bytes.Buffer
		for i, line := range strings.Split(strings.TrimSuffix(r.page.String(), "\n"), "\n") {
			fmt.Fprintln(&b, r.painted[i].paint(line))
		}
		text = b.Bytes()
	}
	if r.err == nil {
		_, r.err = r.out.Write(text)
	}
	r.page.Reset()
	r.painted = r.painted[:0]
	return r.err
}
