package soak

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"sluice.dev/sluice/bench/results"
)

var halfNames = [...]string{"one process", "one after another"}

// print writes the result as tables.
func (r *result) print(c *Config) error {
	fmt.Fprintf(c.Out, "%d rounds in %v, seed %d: %d connections opened before the first, %d answers over them; "+
		"%d of %d datagrams without an answer in a second\n\n", r.rounds, r.elapsed.Round(time.Second), c.Seed,
		c.Connections, r.answers, r.datagrams.Failed(), r.datagrams.Requests)
	if err := results.Markdown(c.Out, r.faultRows()); err != nil {
		return err
	}
	fmt.Fprintln(c.Out)
	return results.Markdown(c.Out, r.growthRows())
}

func (r *result) faultRows() [][]string {
	rows := [][]string{{"fault", "rounds", "beside a flood", "established broken", "ended with their backend",
		"new connections failed meanwhile", "served again after, median", "at most"}}
	for i, t := range r.tallies {
		if t.rounds == 0 {
			continue
		}
		slices.Sort(t.took)
		rows = append(rows, []string{faults[i].name, strconv.Itoa(t.rounds), strconv.Itoa(t.floods),
			strconv.Itoa(t.broken), strconv.Itoa(t.byBackend), fmt.Sprintf("%d of %d", t.failed, t.asked),
			tens(t.took[len(t.took)/2]), tens(t.took[len(t.took)-1])})
	}
	return rows
}

func tens(d time.Duration) string { return d.Round(10 * time.Millisecond).String() }

func (r *result) growthRows() [][]string {
	rows := [][]string{{"resource", "half", "samples", "second quarter", "last quarter", "most", "bound"}}
	for i := range bounds {
		for half, samples := range r.halves {
			row := []string{bounds[i].name, halfNames[half], strconv.Itoa(len(samples))}
			g, ok := growthOf(&bounds[i], samples)
			if !ok {
				rows = append(rows, append(row, "-", "-", "-", fmt.Sprintf("fewer than %d samples", fewest)))
				continue
			}
			held := "held"
			if g.err() != nil {
				held = "grew"
			}
			rows = append(rows, append(row, number(g.first/g.unit), number(g.last/g.unit), number(g.most/g.unit), held))
		}
	}
	return rows
}

func number(v float64) string { return strconv.FormatFloat(math.Round(10*v)/10, 'f', -1, 64) }
