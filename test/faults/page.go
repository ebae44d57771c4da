package faults

import (
	"fmt"
	"path"
	"strings"
)

// mark is the line of the page that the table follows.
const mark = "<!-- The table is test/faults/plan.go: go test ./test/faults -update -->\n"

// end is the line after it.
const end = "<!-- end of the table -->\n"

// Table is the plan as the page has it.
func Table() string {
	var b strings.Builder
	b.WriteString("\n| fault | how it is injected | target | shown by | figure |\n| --- | --- | --- | --- | --- |\n")
	for i := range Plan {
		f := &Plan[i]
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", f.Name, f.How, f.Target, f.shownBy(), f.Figure)
	}
	b.WriteString("\nNot injected:\n\n| fault | what, and why |\n| --- | --- |\n")
	for i := range Plan {
		if f := &Plan[i]; f.Without != "" {
			fmt.Fprintf(&b, "| %s | %s |\n", f.Name, f.Without)
		}
	}
	return b.String() + "\n"
}

func (f *Fault) shownBy() string {
	var all []string
	for _, t := range f.Tests {
		for _, name := range t.Names {
			text := "`" + name + "`"
			if t.Package != "test/e2e" {
				text = "`" + path.Base(t.Package) + "." + name + "`"
			}
			all = append(all, text)
		}
	}
	return strings.Join(all, ", ")
}
