package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// wellFormed reads all of an XML document, and returns its text.
func wellFormed(t *testing.T, doc []byte) string {
	t.Helper()
	var text strings.Builder
	for d := xml.NewDecoder(bytes.NewReader(doc)); ; {
		switch token, err := d.Token(); {
		case errors.Is(err, io.EOF):
			return text.String()
		case err != nil:
			t.Fatalf("not well-formed: %v", err)
		default:
			if c, ok := token.(xml.CharData); ok {
				text.Write(c)
			}
		}
	}
}

func TestPlots(t *testing.T) {
	list := figures(fixture())
	var names []string
	styles := make(map[string]int)
	for _, f := range list {
		for _, s := range f.Series {
			if other, known := styles[s.Name]; known && other != s.Style {
				t.Errorf("%s is drawn in two ways", s.Name)
			}
			styles[s.Name] = s.Style
		}
		names = append(names, f.Name)
		t.Run(f.Name, func(t *testing.T) {
			svg, err := f.svg()
			if err != nil {
				t.Fatal(err)
			}
			if dir := os.Getenv("SLUICE_PLOTS"); dir != "" {
				os.WriteFile(filepath.Join(dir, f.Name+".svg"), svg, 0o644)
			}
			text := wellFormed(t, svg)
			for _, want := range []string{f.Title, f.X, f.Y, f.Series[0].Name, f.Series[1].Name} {
				if !strings.Contains(text, want) {
					t.Errorf("the plot does not say %q", want)
				}
			}
			if (f.Target != nil) != strings.Contains(text, "bound ") {
				t.Errorf("target %v is drawn or not: %s", f.Target, text)
			}
			if again, _ := f.svg(); !bytes.Equal(again, svg) {
				t.Error("the same figure, drawn again, differs")
			}
		})
	}
	if !slices.ContainsFunc(list, func(f figure) bool { return f.Target != nil }) {
		t.Error("no figure has a target, so none was looked for")
	}
	want := "throughput-rate-by-services pipeline-ns-per-packet-by-flows proportional-cpu-by-load"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("drawn: %s\nwant:  %s", got, want)
	}
}
