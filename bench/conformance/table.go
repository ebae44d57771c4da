package conformance

import (
	"fmt"
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
	for _, mode := range modes {
		n := 0
		for _, d := range differences {
			if d.in(mode) != "" {
				n++
			}
		}
		fmt.Fprintf(&b, "%d of them differ from kube-proxy in %s mode.\n", n, mode)
	}
	fmt.Fprint(&b, "\n## Differences from kube-proxy\n\nEmpty: as Sluice.\n\n"+
		"| case | probe | Sluice | nftables | iptables | why |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, d := range differences {
		r := byKey[d.where]
		if r == nil {
			fmt.Fprintf(&b, "| no such probe: %s | | | | | |\n", d.where)
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", r.c.Name, r, r.p.want, d.nftables, d.iptables, d.why)
	}
	b.WriteString(unasked(cases))
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

// unasked is the table of probes that kube-proxy does not get: reasons, and the cases.
func unasked(cases []*Case) string {
	var b strings.Builder
	fmt.Fprint(&b, "\n## What kube-proxy is not asked\n\nAnd whatever a setting of Sluice's decides.\n\n| case | probe | Sluice | why |\n| --- | --- | --- | --- |\n")
	for _, c := range cases {
		for _, s := range c.steps {
			for _, p := range s.probes {
				if p.unasked != "" {
					fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.Name, &result{c: c, s: s, p: p}, p.want, p.unasked)
				}
			}
		}
	}
	return b.String()
}
