package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/color"
	"image/png"
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
			image, err := f.png()
			if err != nil {
				t.Fatal(err)
			}
			if dir := os.Getenv("SLUICE_PLOTS"); dir != "" {
				os.WriteFile(filepath.Join(dir, f.Name+".png"), image, 0o644)
			}
			decoded, err := png.Decode(bytes.NewReader(image))
			if err != nil {
				t.Fatal(err)
			}
			colours := make(map[string]bool)
			for y := range decoded.Bounds().Dy() {
				for x := range decoded.Bounds().Dx() * 4 / 5 { // the legend is further right
					r, g, b, _ := decoded.At(x, y).RGBA()
					colours[string([]byte{byte(r >> 8), byte(g >> 8), byte(b >> 8)})] = true
				}
			}
			for i := range 2 { // of the series
				c := palette[f.Series[i].Style]
				if f.Kind == bars {
					c = color.RGBAModel.Convert(f.Series[i].barColour()).(color.RGBA)
				}
				if !colours[string([]byte{c.R, c.G, c.B})] {
					t.Errorf("nothing is drawn in the colour of %s", f.Series[i].Name)
				}
			}
		})
	}
	if !slices.ContainsFunc(list, func(f figure) bool { return f.Target != nil }) {
		t.Error("no figure has a target, so none was looked for")
	}
	want := "throughput-rate-by-services pipeline-ns-per-packet-by-flows proportional-cpu-by-load " +
		"latency-one-way-distribution " +
		"throughput-rate-side-by-side cpu-cpu-per-packet-side-by-side"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("drawn: %s\nwant:  %s", got, want)
	}
}
