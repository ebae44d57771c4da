package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/internal/table"
	"sluice.dev/sluice/internal/wake"
)

// listing is a command that prints a table, with the flags that all lists have.
type listing[T any] struct {
	s     *session
	table *table.Table[T]
	sort  string
	rates bool

	before []T // with rates: the answer before, at the time
	at     time.Time
}

// newListing adds the flags --sort, --watch and, for a table with counters, --rate. --sort accepts
// more columns, of other tables of the command.
func newListing[T any](s *session, c *cobra.Command, t *table.Table[T], more ...string) *listing[T] {
	l := &listing[T]{s: s, table: t}
	names := t.Names()
	for _, name := range more {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	sortFlag(c, &l.sort, names, "sort by a column, the greatest number first: "+strings.Join(names, ", "))
	if t.Counts() {
		c.Flags().BoolVar(&l.rates, "rate", false, "show counters per second, by two answers")
	}
	s.watched(c)
	return l
}

// sortFlag adds the flag --sort.
func sortFlag(c *cobra.Command, to *string, columns []string, usage string) {
	c.Flags().Var(wordFlag{to, columns}, "sort", usage)
	must(c.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(columns, cobra.ShellCompDirectiveNoFileComp)))
}

// rateEvery is the time between the two answers of --rate without --watch.
const rateEvery = time.Second

// show calls ask for the list, and prints it. Notes about the list are printed by ask.
func (l *listing[T]) show(ctx context.Context, ask func() ([]T, error)) error {
	if l.rates && !l.s.format.text() {
		return usageError{errors.New("--rate is for tables: -o json and -o yaml have the counters")}
	}
	if err := hasColumn(l.table, l.sort); err != nil {
		return err
	}
	list, err := ask()
	if err != nil {
		return err
	}
	if l.rates && l.at.IsZero() {
		l.before, l.at = list, time.Now()
		if !wake.After(ctx, rateEvery) {
			return context.Cause(ctx)
		}
		if list, err = ask(); err != nil {
			return err
		}
	}
	if l.rates {
		now := time.Now()
		list, l.before, l.at = l.table.Rates(l.before, list, now.Sub(l.at)), list, now
	}
	if l.sort != "" || l.s.format.text() {
		l.table.Sort(list, l.sort)
	}
	return l.s.print(list, func(r *rows) { printTable(l.s, r, l.table, list, l.form()) })
}

// hasColumn returns an error if a table of a command has no column of a name.
func hasColumn[T any](t *table.Table[T], name string) error {
	if name == "" || t.Column(name) != nil {
		return nil
	}
	return usageError{fmt.Errorf("--sort %s: this list has the columns %s; the others come or go with --time", name,
		strings.Join(t.Names(), ", "))}
}

func (l *listing[T]) form() table.Form {
	return table.Form{Wide: l.s.format == formatWide, Rates: l.rates, Sort: l.sort}
}

// printTable prints a list. Its cells are cut to the width of a terminal, except in the wide form.
func printTable[T any](s *session, r *rows, t *table.Table[T], list []T, f table.Form) {
	printPainted(s, r, t, list, f, nil)
}

// printPainted is printTable with a rendition of each element; nil: all are plain.
func printPainted[T any](
	s *session, r *rows, t *table.Table[T], list []T, f table.Form, paint func(*T) rendition,
) {
	width, _ := s.terminal()
	if f.Wide {
		width = 0
	}
	lines := table.Lines(t.Grid(list, f), width)
	for i, line := range lines {
		switch {
		case i > 0 && paint != nil:
			r.in(paint(&list[i-1])).line(objects.Printable(line))
		case i > 0 || !f.Headless:
			r.line(objects.Printable(line))
		}
	}
}

// choose returns the elements that an argument selects; all without arguments. For each argument
// that selects nothing the error has one of absent.
func choose[T any](list []T, arguments []string, matches func(*T, string) bool, absent func(argument string) error,
) ([]T, error) {
	if len(arguments) == 0 {
		return list, nil
	}
	chosen := make([]T, 0, len(list))
	found := make([]bool, len(arguments))
	for i := range list {
		selected := false
		for j, a := range arguments {
			if matches(&list[i], a) {
				selected, found[j] = true, true
			}
		}
		if selected {
			chosen = append(chosen, list[i])
		}
	}
	var errs []error
	for j, a := range arguments {
		if !found[j] {
			errs = append(errs, absent(a))
		}
	}
	return chosen, errors.Join(errs...)
}
