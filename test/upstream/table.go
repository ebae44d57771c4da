package upstream

import (
	"fmt"
	"strings"
)

// mark ends what people wrote of docs/upstream.md.
const mark = "<!-- Written by make upstream-doc. -->\n"

// tables is the rest of docs/upstream.md.
func tables() string {
	var b strings.Builder
	run := 0
	for _, c := range cases {
		if c.In != nil {
			run++
		}
	}
	fmt.Fprintf(&b, "%d cases: %d run and must pass, %d do not run.\n\n", len(cases), run, len(cases)-run)
	b.WriteString("## Arrangements\n\n| arrangement | |\n| --- | --- |\n")
	for _, a := range arrangements {
		fmt.Fprintf(&b, "| %s | %s |\n", a.ID, a.Text)
	}
	b.WriteString("\n## Cases that pass\n\n| case | arrangement | what must have risen |\n| --- | --- | --- |\n")
	for _, c := range cases {
		if c.In == nil {
			continue
		}
		counter := "flows"
		if c.By != "" {
			counter = "`" + c.By + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", c.Name, c.In.ID, counter)
	}
	b.WriteString("\n## Cases that do not run\n\n| case | why |\n| --- | --- |\n")
	for _, c := range cases {
		if c.In == nil {
			fmt.Fprintf(&b, "| %s | %s |\n", c.Name, c.Why)
		}
	}
	b.WriteString("\n## Groups of cases about something else\n\n| names begin with | why |\n| --- | --- |\n")
	for _, g := range groups {
		fmt.Fprintf(&b, "| %s | %s |\n", strings.TrimSpace(g.Prefix), g.Why)
	}
	return b.String()
}
