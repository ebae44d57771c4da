package results

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Markdown writes a table for documentation; the first row is its head.
func Markdown(out io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	for i, r := range rows {
		fmt.Fprintf(w, "| %s\t|\n", strings.Join(r, "\t| "))
		if i == 0 {
			fmt.Fprintln(w, "|"+strings.Repeat(" ---\t|", len(r)))
		}
	}
	return w.Flush()
}
