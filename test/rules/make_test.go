package rules

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rootTargets is the maximum number of targets in the root's Makefile: what a contributor runs
// daily. Others belong into bench, deploy or test.
const rootTargets = 12

var (
	makeTarget = regexp.MustCompile(`(?m)^([a-z0-9-]+(?: [a-z0-9-]+)*):(?: |$)`)
	makeIn     = regexp.MustCompile(`make -C (bench|deploy|test) (?:[A-Z_]+=\S+ )?([a-z0-9-]+)`)
	makeInRoot = regexp.MustCompile("(?m)(?:`|^ *)make ([a-z0-9][a-z0-9-]*)") // a command in a page, no prose
	// makeWrapped is a command that breaks over a line.
	makeWrapped = regexp.MustCompile("[`(]make\\s*\n[ \\t/#]*([a-z0-9-]+)[`)]")
)

// TestMakeTargets: each target of make that a tracked file names exists, and `make help` is short.
func TestMakeTargets(t *testing.T) {
	targets := map[string][]string{}
	for _, dir := range []string{"", "bench", "deploy", "test"} {
		for _, m := range makeTarget.FindAllStringSubmatch(read(t, filepath.Join(root, dir, "Makefile")), -1) {
			targets[dir] = append(targets[dir], strings.Fields(m[1])...)
		}
	}
	if n := len(targets[""]); n == 0 || n > rootTargets {
		t.Errorf("the root's Makefile has %d targets, and %d are enough: %v", n, rootTargets, targets[""])
	}
	list, err := exec.Command("git", "-C", root, "grep", "-lI", "make ").Output()
	if err != nil {
		t.Fatal(err)
	}
	mentions := 0
	check := func(file, dir, target string) {
		mentions++
		if !slices.Contains(targets[dir], target) {
			t.Errorf("%s names the target %s of make, which %s does not have", file, target, filepath.Join(dir, "Makefile"))
		}
	}
	for _, file := range strings.Fields(string(list)) {
		text := read(t, filepath.Join(root, file))
		for _, m := range makeIn.FindAllStringSubmatch(text, -1) {
			check(file, m[1], m[2])
		}
		for _, m := range makeWrapped.FindAllStringSubmatch(text, -1) {
			check(file, "", m[1])
		}
		if filepath.Ext(file) != ".md" || file == "CHANGELOG.md" { // its older sections name older targets
			continue
		}
		for _, block := range append(fence.FindAllString(text, -1), code.FindAllString(text, -1)...) {
			for _, m := range makeInRoot.FindAllStringSubmatch(block, -1) {
				check(file, "", m[1])
			}
		}
	}
	if mentions < 50 {
		t.Errorf("only %d mentions of targets were found", mentions)
	}
}
