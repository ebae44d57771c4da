package upstream

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// mark ends what people wrote of docs/upstream.md.
const mark = "<!-- Written by make -C test upstream-doc. -->\n"

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
	passing, omitted := map[string][]string{}, map[string][]string{}
	for _, c := range cases {
		if c.In == nil {
			omitted[c.Why] = append(omitted[c.Why], c.Name)
			continue
		}
		counter := "flows"
		if c.By != "" {
			counter = "`" + c.By + "`"
		}
		key := c.In.ID + " | " + counter
		passing[key] = append(passing[key], c.Name)
	}
	b.WriteString("\n## Cases that pass\n\n| arrangement | counter that must rise | cases |\n| --- | --- | --- |\n")
	writeRows(&b, passing)
	b.WriteString("\n## Cases that do not run\n\n| reason | cases |\n| --- | --- |\n")
	writeRows(&b, omitted)
	b.WriteString("\n## Groups of cases about something else\n\n| reason | names begin with |\n| --- | --- |\n")
	prefixes := map[string][]string{}
	for _, g := range groups {
		prefixes[g.Why] = append(prefixes[g.Why], strings.TrimSpace(g.Prefix))
	}
	writeRows(&b, prefixes)
	return b.String()
}

// writeRows writes a row of each key and its names, in the order of the keys.
func writeRows(b *strings.Builder, names map[string][]string) {
	for _, key := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(b, "| %s | %s |\n", key, strings.Join(names[key], "; "))
	}
}
