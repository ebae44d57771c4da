package report

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"sluice.dev/sluice/bench/results"
)

// OneGeneration reports, as an error, why runs must not be shown together: an experiment that was
// run twice or is not known any more, two machines, or a commit that the history does not have. A
// reader could not tell which of two contradicting figures holds, or look at the code behind one.
func OneGeneration(runs []*results.Run, known []Experiment, inHistory func(version string) bool) error {
	var err error
	names := make(map[string]bool)
	for _, r := range runs {
		switch {
		case placeOf(r, known) < 0:
			err = errors.Join(err, fmt.Errorf("%q is no experiment", r.Name))
		case names[r.Name]:
			err = errors.Join(err, fmt.Errorf("%s: two runs", r.Name))
		}
		names[r.Name] = true
		if d := runs[0].Machine.Differ(r.Machine); d != nil {
			err = errors.Join(err, fmt.Errorf("%s: of another machine than %s: %s differ",
				r.Name, runs[0].Name, strings.Join(d, ", ")))
		}
		if !inHistory(r.Version) {
			err = errors.Join(err,
				fmt.Errorf("%s: commit %q is not in the history (of a shallow clone, fetch the rest)",
					r.Name, r.Version))
		}
	}
	if err != nil {
		return fmt.Errorf("not one generation; measure these again, or delete them: %w", err)
	}
	return nil
}

// History returns a function that reports whether a version, as `git describe --always --dirty`
// writes it, is a commit before the HEAD of the work tree at root. A tree with changes is no
// commit.
func History(root string) func(version string) bool {
	return func(version string) bool {
		if version == "" || strings.HasPrefix(version, "-") {
			return false
		}
		return exec.Command("git", "-C", root, "merge-base", "--is-ancestor", version, "HEAD").Run() == nil
	}
}
