//go:build root

package announce

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// notStopped are loops with a heartbeat that do not run in the campaign, and why. docs/faults.md
// lists them.
var notStopped = map[string]string{
	"reader of ?": "a kind of objects, which the campaign itself finds by name, or the announcer's file, which it " +
		"does not read beside an API server",
}

// addsLoop finds the expression of the name of a loop.
var addsLoop = regexp.MustCompile(`[bB]eats\.Add\(([^,]+),`)

// TestEveryLoopIsStopped: each loop with a heartbeat that a program can have is stopped by the
// campaign, or is in notStopped. The campaign itself sees only loops that its programs have.
func TestEveryLoopIsStopped(t *testing.T) {
	found := map[string]bool{}
	for _, dir := range []string{"gateway", "control", "announce", "allocate", "host", "internal", "serve", "cmd"} {
		err := filepath.WalkDir(filepath.Join("../..", dir), func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			text, err := os.ReadFile(file)
			for _, m := range addsLoop.FindAllSubmatch(text, -1) {
				if name := loopName(string(m[1])); strings.Trim(name, "?") != "" {
					found[name] = true
				}
			}
			return err
		})
		must(t, err)
	}
	if len(found) < 25 {
		t.Fatalf("only %d loops were found", len(found))
	}
	for name := range found {
		stopped := slices.ContainsFunc(faults, func(f fault) bool {
			is, _ := path.Match(f.loop, name)
			return is
		})
		if _, known := notStopped[name]; stopped == known {
			t.Errorf("%q: stopped by the campaign %v, in notStopped %v", name, stopped, known)
		}
	}
	for name := range notStopped {
		if !found[name] {
			t.Errorf("notStopped has %q, and no program does", name)
		}
	}
}

// loopName returns the value of an expression that joins strings; variables become "?".
func loopName(expression string) (name string) {
	for part := range strings.SplitSeq(expression, "+") {
		if text, err := strconv.Unquote(strings.TrimSpace(part)); err == nil {
			name += text
		} else {
			name += "?"
		}
	}
	return name
}
