// Package table lays out lists for terminals: columns of a type, the order of rows, rates of
// counters between two answers, and the width. Every list of a command is a Table.
//
//	Table[T] ──Rates──▶ []T ──Sort──▶ []T ──Grid──▶ [][]string ──Lines──▶ []string
package table

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Show is the forms of a table that have a column.
type Show uint8

// The forms. The wide form has every column but short ones. The column by which rows are sorted is
// in every form.
const (
	Always Show = iota
	Plain       // in the usual form, unless it has rates
	Short       // as Plain, but not in the wide form, which has a longer column of the same name
	Rates       // in the form with rates
	Wide        // only in the wide form
)

// Column is a column of rows of type T.
type Column[T any] struct {
	Name string // in capitals
	Show Show
	// Text returns the cell; "" is shown as "-". A column with a Counter has none.
	Text func(*T) string
	// Number returns the value by which rows are sorted, the greatest first; false if it is not
	// known. Without it, rows are sorted by Text.
	Number func(*T) (float64, bool)
	// Counter returns a field that only increases while the source of the rows runs.
	Counter func(*T) *uint64
	// OfRates: Text is of Counters' rates.
	OfRates bool
	Bytes   bool // the counter is of bytes
}

// Table describes a list.
type Table[T any] struct {
	Columns []Column[T]
	// Key identifies a row among the rows of an answer.
	Key func(*T) string
	// Urgent reports whether an operator must see a row first. It may be nil.
	Urgent func(*T) bool
}

// Form selects columns.
type Form struct {
	Wide  bool
	Rates bool   // counters are per second, as Rates returns them
	Sort  string // the name of a column, or ""
	// Headless leaves out the head, but not its part in the widths of columns.
	Headless bool
}

// Names lists the columns as --sort has them: in lower case.
func (t *Table[T]) Names() (names []string) {
	for i := range t.Columns {
		if name := strings.ToLower(t.Columns[i].Name); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// Column returns the first column of a name in any case; nil if there is none.
func (t *Table[T]) Column(name string) *Column[T] {
	i := slices.IndexFunc(t.Columns, func(c Column[T]) bool { return strings.EqualFold(c.Name, name) })
	if i < 0 {
		return nil
	}
	return &t.Columns[i]
}

// Counts reports whether the table has a counter.
func (t *Table[T]) Counts() bool {
	return slices.ContainsFunc(t.Columns, func(c Column[T]) bool { return c.Counter != nil })
}

// Cell returns the text of a cell.
func (c *Column[T]) Cell(v *T) string {
	if c.Counter == nil {
		return c.Text(v)
	}
	if n := *c.Counter(v); c.Bytes {
		return ByteCount(n)
	} else {
		return strconv.FormatUint(n, 10)
	}
}

// Value returns the number by which a row is sorted; false if it is not known. In a column of texts
// it is 0.
func (c *Column[T]) Value(v *T) (float64, bool) {
	switch {
	case c.Counter != nil:
		return float64(*c.Counter(v)), true
	case c.Number != nil:
		return c.Number(v)
	}
	return 0, true
}

// Compare orders two rows by a column: the greatest number first, unknown numbers last; texts in
// their order.
func (c *Column[T]) Compare(a, b *T) int {
	if c.Counter == nil && c.Number == nil {
		return cmp.Compare(c.Text(a), c.Text(b))
	}
	n, known := c.Value(a)
	m, other := c.Value(b)
	switch {
	case known && other:
		return cmp.Compare(m, n)
	case known:
		return -1
	case other:
		return 1
	}
	return 0
}

// Sort orders rows by a column; without one, urgent rows come first. Otherwise rows keep their
// order.
func (t *Table[T]) Sort(list []T, column string) {
	if c := t.Column(column); c != nil {
		slices.SortStableFunc(list, func(a, b T) int { return c.Compare(&a, &b) })
		return
	}
	if t.Urgent == nil {
		return
	}
	rank := func(v *T) int {
		if t.Urgent(v) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(list, func(a, b T) int { return cmp.Compare(rank(&a), rank(&b)) })
}

// Rates returns the rows of an answer with their counters per second since the answer before. A row
// that the answer before lacks, or whose counter has decreased, has counted from 0 since then.
func (t *Table[T]) Rates(before, now []T, elapsed time.Duration) []T {
	earlier := make(map[string]*T, len(before))
	for i := range before {
		earlier[t.Key(&before[i])] = &before[i]
	}
	rates := slices.Clone(now)
	for i := range rates {
		old := earlier[t.Key(&rates[i])]
		for j := range t.Columns {
			if c := &t.Columns[j]; c.Counter != nil {
				n := c.Counter(&rates[i])
				if old != nil && *c.Counter(old) <= *n {
					*n -= *c.Counter(old)
				}
				*n = uint64(math.Round(float64(*n) / max(elapsed.Seconds(), 1e-3)))
			}
		}
	}
	return rates
}

// Shown lists the columns of a form.
func (t *Table[T]) Shown(f Form) (list []*Column[T]) {
	sorted := t.Column(f.Sort)
	for i := range t.Columns {
		c := &t.Columns[i]
		shown := f.Wide || c == sorted
		switch c.Show {
		case Always:
			shown = true
		case Plain:
			shown = shown || !f.Rates
		case Short:
			shown = !f.Wide && (shown || !f.Rates)
		case Rates:
			shown = shown || f.Rates
		}
		if shown {
			list = append(list, c)
		}
	}
	return list
}

// Grid returns the cells of a form: the head, and a line for each row.
func (t *Table[T]) Grid(list []T, f Form) [][]string {
	columns := t.Shown(f)
	grid := make([][]string, 1, 1+len(list))
	for _, c := range columns {
		name := c.Name
		if f.Rates && c.Counter != nil {
			name += "/s"
		}
		grid[0] = append(grid[0], name)
	}
	for i := range list {
		line := make([]string, len(columns))
		for j, c := range columns {
			line[j] = OneLine(c.Cell(&list[i]))
		}
		grid = append(grid, line)
	}
	return grid
}

// OneLine makes one line of a text, and "-" of an empty one: awk counts columns, and none may be
// empty. Other characters that control a terminal stay: the caller replaces them, one by one.
func OneLine(s string) string { return cmp.Or(strings.ReplaceAll(s, "\n", "; "), "-") }

// ByteCount returns a number of bytes with a binary unit.
func ByteCount(n uint64) string {
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
