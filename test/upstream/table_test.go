package upstream

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// cases are the cases that docs/upstream.md lists, and groups the beginnings of the names of cases
// that are about something else. A case of the release that is neither listed nor in a group fails
// the run: a new release must not add cases in silence.
var cases, groups = readPage()

// readPage reads the tables of docs/upstream.md.
func readPage() (cases []Case, groups []string) {
	for _, row := range rows("Cases that pass", 3) {
		name, alone := strings.CutSuffix(row[0], ", alone")
		i := slices.IndexFunc(arrangements, func(a *Arrangement) bool { return a.ID == name })
		if i < 0 {
			panic(fmt.Sprintf("docs/upstream.md: there is no arrangement %q", name))
		}
		c := Case{In: arrangements[i], Alone: alone, By: strings.Trim(row[1], "`")}
		if c.By == "flows" {
			c.By = ""
		}
		for c.Name = range strings.SplitSeq(row[2], "; ") {
			cases = append(cases, c)
		}
	}
	for _, row := range rows("Cases that do not run", 2) {
		for name := range strings.SplitSeq(row[1], "; ") {
			cases = append(cases, Case{Name: name})
		}
	}
	for _, row := range rows("Groups of cases about something else", 2) {
		for begin := range strings.SplitSeq(row[1], "; ") {
			groups = append(groups, begin+" ")
		}
	}
	return cases, groups
}

func page() string {
	text, err := os.ReadFile("../../docs/upstream.md")
	if err != nil {
		panic(err)
	}
	return string(text)
}

// rows returns the rows of the table below a heading of the page, as cells.
func rows(heading string, cells int) (list [][]string) {
	_, section, _ := strings.Cut(page(), "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	_, table, _ := strings.Cut(section, "| --- |\n")
	for line := range strings.Lines(table) {
		row := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |\n"), " | ")
		if len(row) != cells {
			panic(fmt.Sprintf("docs/upstream.md: a row of %q has %d cells, want %d: %q", heading, len(row), cells, line))
		}
		list = append(list, row)
	}
	return list
}

// TestCases: each case is listed once and by its whole name, each arrangement is described, and the
// page counts right.
func TestCases(t *testing.T) {
	seen, run := map[string]bool{}, 0
	for _, c := range cases {
		if seen[c.Name] || strings.TrimSpace(c.Name) != c.Name || c.Name == "" {
			t.Errorf("%q is there twice, or is no name", c.Name)
		}
		seen[c.Name] = true
		if c.In != nil {
			run++
		}
		if c.By != "" && !c.Alone {
			t.Errorf("%s is counted by a drop reason, and does not run alone", c.Name)
		}
	}
	count := fmt.Sprintf("%d cases: %d run and must pass, %d do not run.\n", len(cases), run, len(cases)-run)
	if run == 0 || len(groups) == 0 || !strings.Contains(page(), count) {
		t.Errorf("%d groups; the page does not say: %s", len(groups), count)
	}
	for i, row := range rows("Arrangements", 2) {
		if i >= len(arrangements) || arrangements[i].ID != row[0] {
			t.Errorf("the page describes %q, and there is no such arrangement at this place", row[0])
		}
	}
}
