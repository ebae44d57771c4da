package rules

import (
	"go/build/constraint"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var routine = regexp.MustCompile(`(?m)^TEXT ·(\w+)\(SB\)`)

// TestAssemblyHasTwins: each routine in assembly has a twin in Go, readGo of Read, which every
// platform compiles, and a file of tests that has a fuzz target and calls both.
func TestAssemblyHasTwins(t *testing.T) {
	n := 0
	for _, path := range tracked(t, "*.s") {
		dir := filepath.Dir(path)
		for _, m := range routine.FindAllStringSubmatch(read(t, path), -1) {
			n++
			name := m[1]
			twin := string(unicode.ToLower(rune(name[0]))) + name[1:] + "Go"
			if !everywhere(t, dir, twin) {
				t.Errorf("%s: no func %s in a file without build constraint, the twin of %s", dir, twin, name)
			}
			if !fuzzed(t, dir, twin) {
				t.Errorf("%s: no file of tests has a fuzz target and calls %s or what export_test.go makes of it", dir,
					twin)
			}
		}
	}
	if n < 9 {
		t.Errorf("%d routines were found, and there were 9", n)
	}
}

// tracked are the files of the tree that match a pattern.
func tracked(t *testing.T, pattern string) (paths []string) {
	t.Helper()
	list := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", pattern)
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	for path := range strings.Lines(string(out)) {
		path = filepath.Join(root, strings.TrimSpace(path))
		if _, err := os.Stat(path); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

// everywhere reports whether a file of dir that every platform compiles has the function.
func everywhere(t *testing.T, dir, function string) bool {
	for _, path := range sources(t, dir) {
		if strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "_amd64.go") ||
			strings.HasSuffix(path, "_arm64.go") {
			continue
		}
		text := read(t, path)
		if !constrained(text) && strings.Contains(text, "\nfunc "+function+"(") {
			return true
		}
	}
	return false
}

func sources(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func constrained(text string) bool {
	for line := range strings.Lines(text) {
		if constraint.IsGoBuild(strings.TrimSpace(line)) {
			return true
		}
		if strings.HasPrefix(line, "package ") {
			break
		}
	}
	return false
}

// fuzzed reports whether a file of tests in dir has a fuzz target and uses the twin by its own name
// or, from outside of the package, in upper case.
func fuzzed(t *testing.T, dir, twin string) bool {
	use := regexp.MustCompile(`\b` + twin + `\(|\.` + strings.ToUpper(twin[:1]) + twin[1:] + `\b`)
	for _, path := range sources(t, dir) {
		if !strings.HasSuffix(path, "_test.go") {
			continue
		}
		if text := read(t, path); strings.Contains(text, "\nfunc Fuzz") && use.MatchString(text) {
			return true
		}
	}
	return false
}
