package faults

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sluice.dev/sluice/test/bed/pagetest"
)

var update = flag.Bool("update", false, "rewrite the table of docs/faults.md")

// TestPage: the table of docs/faults.md is the plan.
func TestPage(t *testing.T) {
	pagetest.Keep(t, "../../docs/faults.md", mark, end, Table(), *update, "go test ./test/faults -update")
}

// TestPlanNamesTests: each row has tests, and each of them exists.
func TestPlanNamesTests(t *testing.T) {
	names := map[string]bool{}
	for _, f := range Plan {
		if names[f.Name] || f.Name == "" || f.How == "" || f.Target == "" || f.Figure == "" || len(f.Tests) == 0 {
			t.Errorf("%q: is there twice, or lacks something", f.Name)
		}
		names[f.Name] = true
	}
	packages, tests := byPackage()
	for _, p := range packages {
		text := source(t, filepath.Join("../..", p))
		for _, name := range tests[p] {
			if !regexp.MustCompile(`(?m)^func ` + name + `\(`).MatchString(text) {
				t.Errorf("%s has no %s", p, name)
			}
		}
	}
}

// source is all test files of a package.
func source(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no tests: %v", dir, err)
	}
	var b strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}
