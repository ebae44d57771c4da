package demo

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// report is what the demo prints. It counts expectations.
type report struct {
	w      io.Writer
	colour bool
	muted  func() bool // after an interruption nothing is judged any more
	met    int
	failed []string
}

// newReport uses colours only where a person reads: on a terminal, unless NO_COLOR
// is set (no-color.org).
func newReport(w io.Writer) *report {
	p := &report{w: w, muted: func() bool { return false }}
	if f, ok := w.(*os.File); ok && os.Getenv("NO_COLOR") == "" {
		_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
		p.colour = err == nil
	}
	return p
}

// Select Graphic Rendition parameters (ECMA-48 section 8.3.117).
const (
	bold  = "1"
	red   = "1;31"
	green = "32"
	faint = "2"
)

func (p *report) paint(sgr, s string) string {
	if !p.colour {
		return s
	}
	return "\x1b[" + sgr + "m" + s + "\x1b[0m"
}

func (p *report) heading(n int, title string) {
	fmt.Fprintf(p.w, "\n%s\n", p.paint(bold, fmt.Sprintf("%d. %s", n, title)))
}

func (p *report) say(format string, args ...any) {
	fmt.Fprintln(p.w, strings.TrimRight("   "+fmt.Sprintf(format, args...), " "))
}

// expect states what must hold, in words that are true if it does.
func (p *report) expect(ok bool, format string, args ...any) {
	if p.muted() {
		return
	}
	text := fmt.Sprintf(format, args...)
	if ok {
		p.met++
		fmt.Fprintf(p.w, "   %s %s\n", p.paint(green, "ok"), text)
		return
	}
	p.fail(text)
}

// fail notes what went wrong.
func (p *report) fail(text string) {
	if p.muted() {
		return
	}
	p.failed = append(p.failed, text)
	fmt.Fprintf(p.w, "   %s expected: %s\n", p.paint(red, "FAILED"), text)
}

// columns are the widths of a table whose rows are printed as they come; a
// negative width aligns to the left.
type columns []int

func (p *report) head(c columns, names ...any) {
	fmt.Fprintln(p.w, p.paint(faint, c.line(names)))
}

func (p *report) row(c columns, cells ...any) { fmt.Fprintln(p.w, c.line(cells)) }

func (c columns) line(cells []any) string {
	var b strings.Builder
	b.WriteString("   ")
	for i, cell := range cells {
		width := 0
		if i < len(c) {
			width = c[i]
		}
		fmt.Fprintf(&b, "%*v  ", width, cell)
	}
	return strings.TrimRight(b.String(), " ")
}

// grouped writes a number with commas: 12,000.
func grouped[T int | int64 | uint64](n T) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
