package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// tables is what docs/conformance.md says of rows, cases and differences, as Markdown.
func tables(cases []*Case, known []string) string {
	var b strings.Builder
	probes := 0
	byRow, byKey := map[string][]string{}, map[string]*result{}
	for _, c := range cases {
		for _, row := range c.Rows {
			byRow[row] = append(byRow[row], c.Name)
		}
		for _, s := range c.steps {
			probes += len(s.probes)
			for _, p := range s.probes {
				r := &result{c: c, s: s, p: p}
				byKey[r.key()] = r
			}
		}
	}
	fmt.Fprintf(&b, "%d rows, %d cases, %d probes.\n", len(known)-len(elsewhere), len(cases), probes)
	for _, mode := range slices.Sorted(maps.Keys(differences)) {
		fmt.Fprintf(&b, "\n## Differences from kube-proxy, %s mode: %d\n\n", mode, len(differences[mode]))
		fmt.Fprint(&b, "| case | probe | Sluice | kube-proxy | why |\n| --- | --- | --- | --- | --- |\n")
		for _, d := range differences[mode] {
			r := byKey[d.where]
			if r == nil {
				fmt.Fprintf(&b, "| no such probe: %s | | | | |\n", d.where)
				continue
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.c.Name, r, r.p.want, d.theirs, d.why)
		}
	}
	section := ""
	fmt.Fprint(&b, "\n## Rows and their cases\n\n| row | cases |\n| --- | --- |\n")
	for _, row := range known {
		title, first, _ := strings.Cut(row, "/")
		if title != section {
			section = title
			fmt.Fprintf(&b, "| **%s** | |\n", section)
		}
		shown := strings.Join(byRow[row], ", ")
		if why, ok := elsewhere[row]; ok {
			shown = "none: " + why
		}
		fmt.Fprintf(&b, "| %s | %s |\n", first, shown)
	}
	return b.String()
}
