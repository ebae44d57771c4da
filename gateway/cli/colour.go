package cli

import (
	"strings"

	"sluice.dev/sluice/internal/table"
	"sluice.dev/sluice/internal/usage"
)

// rendition is how a terminal shows a line: parameters of SGR (ECMA-48 section 8.3.117).
type rendition string

const (
	plain  rendition = ""
	red    rendition = "31" // a problem
	yellow rendition = "33" // a warning
)

// paint returns a line in a rendition.
func (p rendition) paint(line string) string {
	if p == plain {
		return line
	}
	return usage.Paint(string(p), line)
}

// cutPainted is table.Cut for a line that may be painted.
func cutPainted(line string, width int) string {
	text, painted := strings.CutSuffix(line, usage.PaintEnd)
	begin, text, found := strings.Cut(text, "m")
	if !painted || !found {
		return table.Cut(line, width)
	}
	return begin + "m" + table.Cut(text, width) + usage.PaintEnd
}

// levels are the renditions of findings, conditions and events, by their level in lower case.
var levels = map[string]rendition{"fail": red, "error": red, "warn": yellow}

func ofLevel(level string) rendition { return levels[strings.ToLower(level)] }

// ofError returns the rendition of a line with an error; empty: there is none.
func ofError(text string) rendition {
	if text == "" {
		return plain
	}
	return red
}
