package upstream

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// cases are the cases that cases.md lists, and groups the beginnings of the names of cases
// that are about something else. A case of the release that is neither listed nor in a group fails
// the run: a new release must not add cases in silence.
var cases, groups = readPage()

// casesPage has every case, numbersPage their numbers.
const casesPage, numbersPage = "cases.md", "../../docs/upstream.md"

// readPage reads the tables of cases.md.
func readPage() (cases []Case, groups []string) {
	for _, row := range rows(casesPage, "Cases that pass", 3) {
		name, alone := strings.CutSuffix(row[0], ", alone")
		i := slices.IndexFunc(arrangements, func(a *Arrangement) bool { return a.ID == name })
		if i < 0 {
			panic(fmt.Sprintf("%s: there is no arrangement %q", casesPage, name))
		}
		c := Case{In: arrangements[i], Alone: alone, By: strings.Trim(row[1], "`")}
		if c.By == "flows" {
			c.By = ""
		}
		for c.Name = range strings.SplitSeq(row[2], "; ") {
			cases = append(cases, c)
		}
	}
	for _, row := range rows(casesPage, "Cases that do not run", 2) {
		for name := range strings.SplitSeq(row[1], "; ") {
			cases = append(cases, Case{Name: name})
		}
	}
	for _, row := range rows(casesPage, "Groups of cases about something else", 2) {
		for begin := range strings.SplitSeq(row[1], "; ") {
			groups = append(groups, begin+" ")
		}
	}
	return cases, groups
}

func page(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// rows returns the rows of the table below a heading of a page, as cells.
func rows(name, heading string, cells int) (list [][]string) {
	_, section, _ := strings.Cut(page(name), "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	_, table, _ := strings.Cut(section, "| --- |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(strings.TrimSuffix(table, "\n") + "\n") {
		row := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |\n"), " | ")
		if len(row) != cells {
			panic(fmt.Sprintf("%s: a row of %q has %d cells, want %d: %q", name, heading, len(row), cells, line))
		}
		list = append(list, row)
	}
	return list
}

// TestCases: each case is listed once and by its whole name, each arrangement is described, and the
// numbers of docs/upstream.md are right.
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
	if run == 0 || len(groups) == 0 || !strings.Contains(page(numbersPage), count) {
		t.Errorf("%d groups; the page does not say: %s", len(groups), count)
	}
	for i, row := range rows(casesPage, "Arrangements", 2) {
		if i >= len(arrangements) || arrangements[i].ID != row[0] {
			t.Errorf("the page describes %q, and there is no such arrangement at this place", row[0])
		}
	}
	numbers := map[string]int{}
	for _, row := range rows(casesPage, "Cases that do not run", 2) {
		numbers[row[0]] += strings.Count(row[1], "; ") + 1
	}
	shown := rows(numbersPage, "Cases that do not run", 2)
	for _, row := range shown {
		if fmt.Sprint(numbers[row[0]]) != row[1] {
			t.Errorf("the page has %s cases of %q, and %d are listed", row[1], row[0], numbers[row[0]])
		}
	}
	if len(shown) != len(numbers) {
		t.Errorf("the page has %d reasons, and %d are listed", len(shown), len(numbers))
	}
}
