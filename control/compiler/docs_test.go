package compiler_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRowsHaveScenarios: docs/kubernetes.md names every scenario, and none that is not
// there. In its tables a scenario is a word of the last column.
func TestRowsHaveScenarios(t *testing.T) {
	text, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	paths, _ := filepath.Glob("testdata/*.txtar")
	known := map[string]bool{}
	for _, p := range paths {
		name := strings.TrimSuffix(filepath.Base(p), ".txtar")
		known[name] = true
		if !regexp.MustCompile(`[^a-z-]` + name + `[^a-z-]`).Match(text) {
			t.Errorf("scenario %s is not in docs/kubernetes.md", name)
		}
	}
	rows := 0
	shown := false
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		switch last := strings.TrimSpace(cells[len(cells)-1]); {
		case !strings.HasPrefix(line, "|"):
			shown = false
		case last == "shown by":
			shown = true
		case shown && last != "---":
			rows++
			for word := range strings.SplitSeq(last, ", ") {
				if !strings.HasPrefix(word, "`") && !known[word] {
					t.Errorf("%q is shown by no scenario %q", strings.TrimSpace(cells[0]), word)
				}
			}
		}
	}
	if rows < 40 {
		t.Errorf("only %d rows are found in the tables", rows)
	}
}

// TestRowsHaveTests: the Go tests that docs/kubernetes.md names are there.
func TestRowsHaveTests(t *testing.T) {
	text, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, pattern := range []string{
		"../*/*_test.go", "../*/*/*_test.go", "../../fastpath/*_test.go", "../../fastpath/*/*_test.go",
		"../../serve/*/*_test.go", "../../host/*/*_test.go", "../../config/*_test.go",
	} {
		paths, _ := filepath.Glob(pattern)
		for _, p := range paths {
			b, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(b)
		}
	}
	names := regexp.MustCompile("`(Test[A-Za-z]+)`").FindAllStringSubmatch(string(text), -1)
	if len(names) == 0 {
		t.Error("no test is named")
	}
	for _, n := range names {
		if !strings.Contains(code.String(), "func "+n[1]+"(t *testing.T)") {
			t.Errorf("there is no %s", n[1])
		}
	}
}
