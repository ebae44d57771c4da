package table

import (
	"strings"
	"unicode/utf8"
)

// gap is the space between two columns.
const gap = 2

// narrowest is the least width to which Widths cuts a column.
const narrowest = 6

// Widths returns the widths of columns. If limit is not 0 and they need more, the widest columns
// become narrower, down to a few characters.
func Widths(grid [][]string, limit int) []int {
	var widths []int
	for _, line := range grid {
		for i, cell := range line {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	total := gap * max(0, len(widths)-1)
	for _, w := range widths {
		total += w
	}
	for limit > 0 && total > limit {
		widest := 0
		for i, w := range widths {
			if w >= widths[widest] { // of equal ones the last, whose end matters least
				widest = i
			}
		}
		if widths[widest] <= narrowest {
			break
		}
		widths[widest]--
		total--
	}
	return widths
}

// Cut returns a text of at most width characters. A text that it cuts ends in an ellipsis.
func Cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	runes := []rune(s)
	return string(runes[:max(0, width-1)]) + "…"
}

// Lines aligns columns. limit is the width of the terminal; 0: no cell is cut.
func Lines(grid [][]string, limit int) []string {
	widths := Widths(grid, limit)
	lines := make([]string, len(grid))
	var b strings.Builder
	for i, line := range grid {
		b.Reset()
		for j, cell := range line {
			cell = Cut(cell, widths[j])
			b.WriteString(cell)
			if j < len(line)-1 {
				b.WriteString(strings.Repeat(" ", widths[j]-utf8.RuneCountInString(cell)+gap))
			}
		}
		lines[i] = b.String()
	}
	return lines
}
