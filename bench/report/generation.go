package report

import (
	"cmp"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"sluice.dev/sluice/bench/results"
)

// generation holds the runs of one machine in the order of the experiments. Title heads its
// columns.
type generation struct {
	title string
	runs  []*results.Run
}

// column is a generation's run of an experiment.
type column struct {
	title string
	run   *results.Run
}

// processors are short names of the baselines' processors. Other processors keep the kernel's name.
var processors = map[string]string{
	"AMD EPYC (family 25, model 17)": "Zen 4",
	"AMD EPYC (family 25, model 1)":  "Zen 3",
}

// generationsOf returns a generation for each set of runs; each set must come from a different
// machine.
func generationsOf(sets [][]*results.Run, known []Experiment, inHistory func(string) bool) ([]generation, error) {
	var gens []generation
	for _, runs := range sets {
		if err := OneGeneration(runs, known, inHistory); err != nil {
			return nil, err
		}
		g := generation{runs: inOrder(runs, known)}
		g.title = cmp.Or(processors[runs[0].Machine.CPU], runs[0].Machine.CPU, "unknown processor")
		if slices.ContainsFunc(gens, func(o generation) bool { return o.title == g.title }) {
			return nil, fmt.Errorf("two sets of runs on %s: their columns would have one heading", g.title)
		}
		gens = append(gens, g)
	}
	if len(gens) == 0 {
		return nil, errors.New("no runs")
	}
	return gens, nil
}

// experimentsOf returns the columns of each experiment, in the order of the generations' runs. A
// second run of an experiment in one generation counts as a separate experiment.
func experimentsOf(gens []generation) (list [][]column) {
	at := make(map[string]int)
	for _, g := range gens {
		own := make(map[string]bool)
		for _, r := range g.runs {
			n, known := at[r.Name]
			if !known || own[r.Name] {
				n, at[r.Name] = len(list), len(list)
				list = append(list, nil)
			}
			own[r.Name] = true
			list[n] = append(list[n], column{g.title, r})
		}
	}
	return list
}

// OneGeneration returns an error if runs must not share a column: an experiment was run twice or is
// unknown, there are two machines, or a commit is not in the history. A reader could not tell which
// of two contradicting figures is valid, or look at the code behind one.
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
			err = errors.Join(err, fmt.Errorf("%s: from another machine than %s: %s differ",
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

// History returns a function that reports whether a version, in the format of `git describe
// --always --dirty`, is an ancestor of HEAD in the work tree at root. A version of a modified tree
// is not.
func History(root string) func(version string) bool {
	return func(version string) bool {
		if version == "" || strings.HasPrefix(version, "-") {
			return false
		}
		return exec.Command("git", "-C", root, "merge-base", "--is-ancestor", version, "HEAD").Run() == nil
	}
}
