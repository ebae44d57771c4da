package usage

import (
	"io"
	"os"

	"golang.org/x/term"
)

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Colours reports whether a program may use colours on w: w is a terminal that is not dumb, and
// NO_COLOR is not set (no-color.org).
func Colours(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && IsTerminal(w)
}

// PaintEnd ends what Paint begins.
const PaintEnd = "\x1b[0m"

// Paint returns a text in a rendition: parameters of SGR (ECMA-48 section 8.3.117).
func Paint(sgr, text string) string { return "\x1b[" + sgr + "m" + text + PaintEnd }
