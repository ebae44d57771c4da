package paired

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"sluice.dev/sluice/bench/results"
)

// Row is a figure of both builds. Ratio has its verdict.
type Row struct {
	What        string
	Before, Now string // medians with their units
	Ratio       *results.Point
}

// Print writes a line for each row, and a summary.
func Print(out io.Writer, rows []Row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "now against before, medians of pairs\tbefore\tnow\tnow/before\t%.0f %% interval\tpairs\t\n",
		100*Confidence)
	count := map[Verdict]int{}
	for _, r := range rows {
		v := VerdictOf(r.Ratio)
		count[v]++
		fmt.Fprintf(w, "%s\t%s\t%s\t%.3f\t%s\t%d\t%s\n", r.What, r.Before, r.Now, r.Ratio.Median(), interval(r.Ratio),
			len(r.Ratio.Samples), r.Ratio.Remark)
	}
	if err := w.Flush(); err != nil || len(rows) == 0 {
		return err
	}
	var sum []string
	for _, v := range []Verdict{Slower, TooFew, Unchanged, Faster} {
		if n := count[v]; n > 0 {
			sum = append(sum, fmt.Sprintf("%d %s", n, v))
		}
	}
	_, err := fmt.Fprintf(out, "verdict of %d figures: %s\n", len(rows), strings.Join(sum, "; "))
	return err
}

func interval(p *results.Point) string {
	if p.Interval == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f to %.3f", p.Interval.Low, p.Interval.High)
}

// Fail returns the error of --fail-slower: it names the slower rows; nil if there are none.
func Fail(rows []Row) error {
	var slower []string
	for _, r := range rows {
		if VerdictOf(r.Ratio) == Slower {
			slower = append(slower, r.What)
		}
	}
	if slower == nil {
		return nil
	}
	return fmt.Errorf("%s than before: %s (--fail-slower)", Slower, strings.Join(slower, "; "))
}
