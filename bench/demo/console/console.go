// Package console prints demonstrations: headings, lines, tables, and expectations, which it
// counts. It prints an expectation that is not met as FAILED, and End then returns an error.
package console

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sluice.dev/sluice/internal/usage"
)

// ErrExpectation is wrapped by End's error when an expectation was not met.
var ErrExpectation = errors.New("not as expected")

// Console prints, and counts expectations. It belongs to one goroutine.
type Console struct {
	// Muted reports whether expectations are no longer checked, as after an interruption.
	Muted func() bool

	w      io.Writer
	colour bool
	began  time.Time
	met    int
	failed []string
}

// New uses colours where usage.Colours allows them.
func New(w io.Writer) *Console {
	return &Console{w: w, colour: usage.Colours(w), began: time.Now(), Muted: func() bool { return false }}
}

// Select Graphic Rendition parameters (ECMA-48 section 8.3.117).
const (
	bold  = "1"
	red   = "1;31"
	green = "32"
	Faint = "2" // for secondary text
)

// Paint returns a text in a rendition, if colours are used.
func (p *Console) Paint(sgr, s string) string {
	if !p.colour {
		return s
	}
	return usage.Paint(sgr, s)
}

// Heading begins a numbered part.
func (p *Console) Heading(n int, title string) {
	fmt.Fprintf(p.w, "\n%s\n", p.Paint(bold, fmt.Sprintf("%d. %s", n, title)))
}

// Say prints an indented line.
func (p *Console) Say(format string, args ...any) {
	fmt.Fprintln(p.w, strings.TrimRight("   "+fmt.Sprintf(format, args...), " "))
}

// Expect checks an expectation; the text states it as a fact.
func (p *Console) Expect(ok bool, format string, args ...any) {
	if p.Muted() {
		return
	}
	text := fmt.Sprintf(format, args...)
	if ok {
		p.met++
		fmt.Fprintf(p.w, "   %s %s\n", p.Paint(green, "ok"), text)
		return
	}
	p.Fail(text)
}

// Fail reports an expectation that was not met.
func (p *Console) Fail(text string) {
	if p.Muted() {
		return
	}
	p.failed = append(p.failed, text)
	fmt.Fprintf(p.w, "   %s expected: %s\n", p.Paint(red, "FAILED"), text)
}

// Columns are the widths of a table whose rows are printed one by one; a negative width aligns to
// the left.
type Columns []int

// Head prints the names of columns.
func (p *Console) Head(c Columns, names ...any) {
	fmt.Fprintln(p.w, p.Paint(Faint, c.line(names)))
}

// Row prints one line of a table.
func (p *Console) Row(c Columns, cells ...any) { fmt.Fprintln(p.w, c.line(cells)) }

func (c Columns) line(cells []any) string {
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

// Grouped writes a number with commas: 12,000.
func Grouped[T int | int64 | uint64](n T) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
