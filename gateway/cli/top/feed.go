package top

import (
	"context"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/table"
)

// Answer is a list that a gateway returned.
type Answer[T any] struct {
	Rows []T
	Note string // about the list, such as that it is not complete
}

// Feed reads one list again and again, and lays out the newest answer.
type Feed interface {
	// Read asks for the list, and returns a function that makes the answer the newest one. Only
	// that function changes the feed, so Read may run while the feed is shown.
	Read(context.Context) (apply func(), err error)
	// Grid lays out the newest answer.
	Grid(Order) Grid
	// Columns are the names that Order.Sort may have.
	Columns() []string
}

// Order selects rows, and their order.
type Order struct {
	Sort    string // a column; "": urgent rows first
	Reverse bool
	Filter  string // a part of a cell, in any case; "": all rows
	Wide    bool
}

// Grid is a laid out list.
type Grid struct {
	Cells  [][]string // with the head
	Keys   []string   // of the rows, without the head
	Urgent []bool
	Names  []string // of the shown columns
	All    int      // rows before the filter
	Note   string
	Known  bool // there was an answer
}

// feed is the Feed of a table.
type feed[T any] struct {
	table *table.Table[T]
	ask   func(context.Context) (Answer[T], error)
	now   func() time.Time

	answers int
	last    Answer[T] // as it came
	at      time.Time // of last
	shown   []T       // last, with rates from the second answer on
}

// NewFeed returns the feed of a table. Its counters are shown per second, between two answers.
func NewFeed[T any](
	t *table.Table[T], now func() time.Time, ask func(context.Context) (Answer[T], error),
) Feed {
	return &feed[T]{table: t, ask: ask, now: now}
}

func (f *feed[T]) Columns() []string { return f.table.Names() }

func (f *feed[T]) Read(ctx context.Context) (func(), error) {
	a, err := f.ask(ctx)
	if err != nil {
		return nil, err
	}
	at := f.now()
	return func() {
		f.shown = a.Rows
		if f.answers++; f.answers > 1 && f.table.Counts() {
			f.shown = f.table.Rates(f.last.Rows, a.Rows, at.Sub(f.at))
		}
		f.last, f.at = a, at
	}, nil
}

func (f *feed[T]) Grid(o Order) Grid {
	list := slices.Clone(f.shown)
	f.table.Sort(list, o.Sort)
	if o.Reverse {
		slices.Reverse(list)
	}
	form := table.Form{Rates: true, Wide: o.Wide, Sort: o.Sort}
	columns := f.table.Shown(form)
	cells := f.table.Grid(list, form)
	g := Grid{Cells: cells[:1], All: len(list), Note: f.last.Note, Known: f.answers > 0}
	for _, c := range columns {
		g.Names = append(g.Names, strings.ToLower(c.Name))
	}
	for i := range list {
		line := cells[i+1]
		if !contains(line, o.Filter) {
			continue
		}
		if f.answers < 2 { // a rate needs two answers
			for j, c := range columns {
				if c.Counter != nil || c.OfRates {
					line[j] = "-"
				}
			}
		}
		g.Cells = append(g.Cells, line)
		g.Keys = append(g.Keys, f.table.Key(&list[i]))
		g.Urgent = append(g.Urgent, f.table.Urgent != nil && f.table.Urgent(&list[i]))
	}
	return g
}

// contains reports whether a cell contains a text, in any case.
func contains(line []string, text string) bool {
	text = strings.ToLower(text)
	return text == "" || slices.ContainsFunc(line, func(cell string) bool {
		return strings.Contains(strings.ToLower(cell), text)
	})
}
