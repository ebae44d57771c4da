package conformance

import (
	"fmt"
	"strings"
)

// tables returns the counts and differences in docs/conformance.md, as Markdown.
func tables(cases []*Case, known []string) string {
	var b strings.Builder
	probes := 0
	byKey := map[string]*result{}
	for _, c := range cases {
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
		run, asked := size(cases, mode)
		fmt.Fprintf(&b, "%d of %d probes of %d cases differ from kube-proxy in %s mode.\n", n, asked, run, mode)
	}
	b.WriteString(differing(byKey))
	return b.String()
}

// listing returns the cases of each row, and the probes and cases that kube-proxy does not get, as
// Markdown.
func listing(cases []*Case, known []string) string {
	var b strings.Builder
	byRow := map[string][]string{}
	for _, c := range cases {
		for _, row := range c.Rows {
			byRow[row] = append(byRow[row], c.Name)
		}
	}
	section := ""
	fmt.Fprint(&b, "## Rows and their cases\n\n| row | cases |\n| --- | --- |\n")
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
	b.WriteString(unasked(cases))
	b.WriteString(omitted(cases))
	return b.String()
}

// differing returns the table of differences from kube-proxy, under a row for each reason.
func differing(byKey map[string]*result) string {
	var b strings.Builder
	fmt.Fprint(&b, "\n## Differences from kube-proxy\n\nEmpty: as Sluice. –: not run in this mode.\n\n"+
		"| case | probe | Sluice | nftables | iptables | ipvs |\n| --- | --- | --- | --- | --- | --- |\n")
	of := map[string][]difference{}
	var whys []string
	for _, d := range differences {
		if of[d.why] == nil {
			whys = append(whys, d.why)
		}
		of[d.why] = append(of[d.why], d)
	}
	for _, why := range whys {
		fmt.Fprintf(&b, "| **%s** | | | | | |\n", why)
		var list outcomes
		for _, d := range of[why] {
			r := byKey[d.where]
			if r == nil {
				fmt.Fprintf(&b, "| no such probe: %s | | | | | |\n", d.where)
				continue
			}
			inIPVS := d.ipvs
			if r.c.leftOut(ipvs) != "" {
				inIPVS += "–"
			}
			list.add(r, d.nftables, d.iptables, inIPVS)
		}
		b.WriteString(list.String())
	}
	return b.String()
}

// outcomes are the rows of a table: successive probes of a case with the same outcomes share one.
type outcomes []outcomeRow

type outcomeRow struct {
	last         *result // of its probes
	probes, ends string
}

// add appends a probe with its outcome on Sluice and those on others.
func (o *outcomes) add(r *result, others ...string) {
	ends := strings.Join(append([]string{r.p.want}, others...), " | ")
	if n := len(*o) - 1; n >= 0 && (*o)[n].last.c == r.c && (*o)[n].ends == ends {
		probe := r.String()
		if (*o)[n].last.s == r.s {
			probe = r.p.String()
		}
		(*o)[n].probes, (*o)[n].last = (*o)[n].probes+"; "+probe, r
		return
	}
	*o = append(*o, outcomeRow{r, r.String(), ends})
}

func (o outcomes) String() string {
	var b strings.Builder
	for _, row := range o {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", row.last.c.Name, row.probes, row.ends)
	}
	return b.String()
}

// size is how many cases are run with kube-proxy in a mode, and how many probes of theirs it gets.
func size(cases []*Case, mode string) (run, asked int) {
	for _, c := range cases {
		if c.leftOut(mode) != "" {
			continue
		}
		run++
		for _, s := range c.steps {
			for _, p := range s.probes {
				if p.unasked == "" && s.options == "" {
					asked++
				}
			}
		}
	}
	return run, asked
}

// omitted is the table of cases that are not run with kube-proxy in mode ipvs.
func omitted(cases []*Case) string {
	var b strings.Builder
	var whys []string
	names := map[string][]string{}
	for _, c := range cases {
		why := c.leftOut(ipvs)
		if why == "" {
			continue
		}
		if names[why] == nil {
			whys = append(whys, why)
		}
		names[why] = append(names[why], c.Name)
	}
	fmt.Fprint(&b, "\n## Cases that are not run in mode ipvs\n\n| why | number | cases |\n| --- | --- | --- |\n")
	for _, why := range whys {
		fmt.Fprintf(&b, "| %s | %d | %s |\n", why, len(names[why]), strings.Join(names[why], ", "))
	}
	return b.String()
}

// unasked returns the table of probes that kube-proxy does not get, under a row for each reason.
func unasked(cases []*Case) string {
	var b strings.Builder
	fmt.Fprint(&b, "\n## Probes that kube-proxy does not get\n\nProbes that depend on a setting of Sluice are left "+
		"out too.\n\n| case | probe | Sluice |\n| --- | --- | --- |\n")
	rows := map[string]*outcomes{}
	var whys []string
	for _, c := range cases {
		for _, s := range c.steps {
			for _, p := range s.probes {
				if p.unasked == "" {
					continue
				}
				if rows[p.unasked] == nil {
					whys = append(whys, p.unasked)
					rows[p.unasked] = new(outcomes)
				}
				rows[p.unasked].add(&result{c: c, s: s, p: p})
			}
		}
	}
	for _, why := range whys {
		fmt.Fprintf(&b, "| **%s** | | |\n%s", why, rows[why])
	}
	return b.String()
}
