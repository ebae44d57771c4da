package pipeline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/bench/paired"
	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/progress"
	"sluice.dev/sluice/test/bed/scratch"
)

// BeforeRepeat is the default number of pairs of Config.Before: the confidence interval of their
// median is from the third smallest to the third largest.
const BeforeRepeat = 12

// The two builds, as indices of arrays.
const (
	then = iota
	now
)

// build is one of the two builds.
type build struct{ name, path string }

// unit is a part of the measurement that is run in one piece.
type unit struct {
	scenario string
	v4, v6   bool
	flows    int // of the sweep; 0 in other scenarios
}

// beforeRun is one run with Config.Before.
type beforeRun struct {
	Config
	ctx    context.Context
	builds [2]build
	short  bool   // both builds have RunTurns
	dir    string // for files of whole runs
	points
	rows []paired.Row
}

func (c *Config) checkBefore() error {
	switch {
	case c.Before == "" && c.FailSlower:
		return errors.New("--fail-slower is about --before: name an older sluice-bench with it")
	case c.Before == "":
		return nil
	case c.Profile != "":
		return errors.New("--before measures in processes of their own: profile one build at a time, without --before")
	case c.Reference:
		return errors.New("--before compares two builds without the reference in C: leave out --reference")
	case len(c.Scenarios) == 0:
		c.Scenarios = []string{"steady"}
	}
	return nil
}

// runBefore measures an older build and this one in turns.
func runBefore(ctx context.Context, c Config) (err error) {
	older, err := paired.Find(ctx, c.Before, "sluice-bench")
	if err != nil {
		return fmt.Errorf("pipeline: %w", err)
	}
	b := &beforeRun{Config: c, ctx: ctx, builds: [2]build{then: {before, older.Path}, now: {sluice, c.Bench}}}
	if b.dir, err = scratch.Temporary("sluice-pipeline-"); err != nil {
		return fmt.Errorf("pipeline: %w", err)
	}
	defer os.RemoveAll(b.dir)
	run := results.Begin("in memory, frames ready in the UMEM")
	run.Machine.Notes = "before: " + older.Version
	same, err := paired.Same(older.Path, c.Bench)
	if err != nil {
		return fmt.Errorf("pipeline: %w", err)
	}
	if same {
		run.Machine.Notes += ", the same file as now: only noise is measured"
	}
	b.short = b.knowsTurns()
	fmt.Fprintf(c.Out, "%s; %s\n", run.Machine.Notes, b.how())
	err = b.all()
	if ctx.Err() != nil {
		err = ctx.Err() // not an error of a process that ended with the context
	}
	b.addRows()
	if printErr := paired.Print(c.Out, b.rows); err == nil {
		err = printErr
	}
	if err != nil {
		return fmt.Errorf("pipeline: %w", err)
	}
	run.Points = b.list
	if err := run.Finish(c.JSON); err != nil || !c.FailSlower {
		return err
	}
	return paired.Fail(b.rows)
}

// knowsTurns reports whether the older build has RunTurns in the same version. A build without the
// command fails at once.
func (b *beforeRun) knowsTurns() bool {
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, b.builds[then].path, "pipeline", "turns", "--speaks").Output()
	return err == nil && strings.TrimSpace(string(out)) == TurnsVersion
}

func (b *beforeRun) how() string {
	if b.short {
		return fmt.Sprintf("both take turns of %d chunks in scenario steady, whole runs in others", turn)
	}
	return "the older build has no shorter turns: whole runs take turns"
}

// all takes one sample of every unit in each round.
func (b *beforeRun) all() error {
	units := b.units()
	bar := progress.Start(b.Out, b.Repeat*len(units))
	for round := range b.Repeat {
		for _, u := range units {
			bar.Step(fmt.Sprintf("round %d of %d: %s", round+1, b.Repeat, u))
			if err := b.ctx.Err(); err != nil {
				return err
			}
			measure := b.whole
			if b.short && u.flows > 0 {
				measure = b.turns
			}
			if err := measure(u, round); err != nil {
				return fmt.Errorf("%s: %w", u, err)
			}
		}
	}
	bar.Done()
	return nil
}

// order is the order of the builds in a round: each comes first in every other round.
func order(round int) [2]int {
	if round%2 == 0 {
		return [2]int{then, now}
	}
	return [2]int{now, then}
}

// units divides the measurement as finely as command lines can, so that the two runs of a pair are
// close in time.
func (b *beforeRun) units() (list []unit) {
	for _, s := range scenarios {
		if !slices.Contains(b.Scenarios, s.name) {
			continue
		}
		if s.name != "steady" {
			list = append(list, unit{scenario: s.name, v4: b.IPv4, v6: b.IPv6})
			continue
		}
		for _, v6 := range (&runner{Config: b.Config}).families() {
			for _, flows := range b.Flows {
				list = append(list, unit{s.name, !v6, v6, flows})
			}
		}
	}
	return list
}

// args are the flags of a unit, with and without turns.
func (b *beforeRun) args(u unit) []string {
	args := []string{"--ipv4=" + strconv.FormatBool(u.v4), "--ipv6=" + strconv.FormatBool(u.v6), "--cpu",
		strconv.Itoa(b.CPU)}
	if u.flows > 0 {
		args = append(args, "--flows", strconv.Itoa(u.flows))
	}
	return args
}

// params are the conditions of a sample, named as in scenario steady.
func (u unit) params(l load) map[string]string {
	return with(l.params(), "scenario", u.scenario, "family", family(u.v6), "flows", strconv.Itoa(u.flows))
}

// String is a unit in a line of progress.
func (u unit) String() string {
	if u.flows == 0 {
		return u.scenario
	}
	return fmt.Sprintf("%s %s, %d flows", u.scenario, family(u.v6), u.flows)
}

// pair adds a sample of both builds, and their ratio now/before.
func (b *beforeRun) pair(like results.Point, old, new, ratio float64) {
	like.System = before
	b.add(old, like)
	like.System = sluice
	b.add(new, like)
	like.System, like.Metric, like.Unit = sluice, metricRatio+" of "+like.Metric, "ratio"
	like.Params = with(like.Params, "to", before)
	b.add(ratio, like)
}

// addRows adds a row for each ratio.
func (b *beforeRun) addRows() {
	for i := range b.list {
		p := &b.list[i]
		if p.Unit != "ratio" {
			continue
		}
		paired.SetVerdict(p)
		params := with(p.Params)
		delete(params, "to")
		b.rows = append(b.rows, paired.Row{What: conditions(params), Before: b.text(before, params),
			Now: b.text(sluice, params), Ratio: p})
	}
}

// text is the median of a build under the given conditions.
func (b *beforeRun) text(system string, params map[string]string) string {
	for i := range b.list {
		if p := &b.list[i]; p.System == system && p.Unit != "ratio" && conditions(p.Params) == conditions(params) {
			return fmt.Sprintf("%.4g %s", p.Median(), p.Unit)
		}
	}
	return ""
}
