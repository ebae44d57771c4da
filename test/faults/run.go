package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Run runs the tests of the plan in the tree that is the working directory, one package after
// another, and goes on where one fails.
func Run(ctx context.Context, out io.Writer) error {
	packages, names := byPackage()
	var errs []error
	for _, p := range packages {
		c := exec.CommandContext(ctx, "go", "test", "-tags", "root", "-p", "1", "-count=1", "-v", "-timeout", "2h",
			"-run", "^("+strings.Join(names[p], "|")+")$", "./"+p)
		c.Stdout, c.Stderr, c.Env = out, out, append(os.Environ(), "SLUICE_VALIDATE=1")
		if err := c.Run(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

// byPackage lists the packages of the plan in its order, and the tests of each, once.
func byPackage() (packages []string, names map[string][]string) {
	names = map[string][]string{}
	for i := range Plan {
		for _, t := range Plan[i].Tests {
			if names[t.Package] == nil {
				packages = append(packages, t.Package)
			}
			for _, name := range t.Names {
				if !slices.Contains(names[t.Package], name) {
					names[t.Package] = append(names[t.Package], name)
				}
			}
		}
	}
	return packages, names
}
