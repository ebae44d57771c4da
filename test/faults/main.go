// Command faults runs the tests of the fault plan, from the root of the tree. The plan is the first
// table of docs/faults.md: the faults that may occur around a gateway, their injection, the
// conditions that must hold then, and the tests that show it.
//
// `make -C test faults` runs it as root. A fault at a random moment is injected SLUICE_FAULT_RUNS
// times: 5 in `make test`, 200 in `make -C test faults`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "the fault plan:", err)
		os.Exit(1)
	}
}

// run runs the tests package by package, and goes on where one fails.
func run(ctx context.Context) error {
	packages, names, err := plan(".")
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range packages {
		c := exec.CommandContext(ctx, "go", "test", "-tags", "root", "-p", "1", "-count=1", "-v", "-timeout", "2h",
			"-run", "^("+strings.Join(names[p], "|")+")$", "./"+p)
		c.Stdout, c.Stderr, c.Env = os.Stdout, os.Stderr, append(os.Environ(), "SLUICE_VALIDATE=1")
		if err := c.Run(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

var (
	named    = regexp.MustCompile("`(?:(\\w+)\\.)?(Test\\w+)`")
	declared = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// plan returns the packages of the plan, as directories below root in the order of the table, and
// the tests of each. A row without a test, and a test that is not there, are errors.
func plan(root string) (packages []string, names map[string][]string, err error) {
	page, err := os.ReadFile(filepath.Join(root, "docs/faults.md"))
	if err != nil {
		return nil, nil, err
	}
	known, err := tests(root)
	if err != nil {
		return nil, nil, err
	}
	names = map[string][]string{}
	_, table, _ := strings.Cut(string(page), "| --- |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	for row := range strings.SplitSeq(strings.TrimSpace(table), "\n") {
		cells := strings.Split(row, " | ")
		if len(cells) != 5 || !named.MatchString(cells[3]) {
			err = errors.Join(err, fmt.Errorf("docs/faults.md: a row needs five cells, and a test in the fourth: %s",
				row))
			continue
		}
		for _, m := range named.FindAllStringSubmatch(cells[3], -1) {
			base, name := m[1], m[2]
			if base == "" {
				base = "e2e"
			}
			in := known[base+"."+name]
			if len(in) != 1 {
				err = errors.Join(err, fmt.Errorf("docs/faults.md: %s.%s is in %d packages, want one: %v", base, name,
					len(in), in))
				continue
			}
			if names[in[0]] == nil {
				packages = append(packages, in[0])
			}
			if !slices.Contains(names[in[0]], name) {
				names[in[0]] = append(names[in[0]], name)
			}
		}
	}
	return packages, names, err
}

// tests returns the directories of each test of the tree, by the name of the directory and of the
// test.
func tests(root string) (known map[string][]string, err error) {
	known = map[string][]string{}
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, m := range declared.FindAllSubmatch(text, -1) {
			key := filepath.Base(dir) + "." + string(m[1])
			known[key] = append(known[key], dir)
		}
		return err
	})
	return known, err
}
