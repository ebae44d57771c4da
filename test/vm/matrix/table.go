package matrix

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// table writes the cases of each guest and their results.
func table(out io.Writer, outcomes []Outcome) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NICS\tLINUX\tMODE\tTRIED\tRESULT\tTIME\tDETAIL")
	for _, o := range outcomes {
		where := o.Row.nics() + "\t" + o.Kernel.Release
		if o.Row.Name != "" {
			where = o.Row.nics() + ", " + o.Row.Name + "\t" + o.Kernel.Release
		}
		for _, r := range o.Results {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.1f s\t%s\n", where, r.Modes, r.Case, verdict(r.OK),
				float64(r.Millis)/1000, r.Detail)
		}
		whole := "ok"
		if o.failed() {
			whole = "FAILED"
		}
		fmt.Fprintf(w, "%s\t\tthe guest\t%s\t%.0f s\t\n", where, whole, o.Elapsed.Seconds())
	}
	return w.Flush()
}
