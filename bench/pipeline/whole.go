package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sluice.dev/sluice/bench/results"
)

// whole measures a unit with a separate run of each build, one after the other.
func (b *beforeRun) whole(u unit, round int) error {
	var found [2]map[string]results.Point
	for _, i := range order(round) {
		var err error
		if found[i], err = b.runOne(b.builds[i], u); err != nil {
			return err
		}
	}
	if err := sameKeys(found); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(found[now])) {
		p, q := found[now][key], found[then][key]
		b.pair(results.Point{Params: p.Params, Metric: p.Metric, Unit: p.Unit, Better: p.Better}, q.Median(),
			p.Median(), p.Median()/q.Median())
	}
	return nil
}

// runOne runs a build's pipeline command once, and returns its worker's figures by key.
func (b *beforeRun) runOne(build build, u unit) (map[string]results.Point, error) {
	file := filepath.Join(b.dir, "run.json")
	args := append([]string{"pipeline", "--scenario", u.scenario, "--repeat", "1", "--windows", strconv.Itoa(b.Chunks),
		"--reference=false", "--json", file}, b.args(u)...)
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err // an older run's file must not pass for this one's
	}
	var stderr strings.Builder
	c := exec.CommandContext(b.ctx, build.path, args...)
	c.Stdout, c.Stderr = io.Discard, &stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C is for this process, which ends the run
	c.WaitDelay = time.Second
	if err := c.Run(); err != nil {
		if b.ctx.Err() != nil {
			return nil, context.Cause(b.ctx)
		}
		return nil, fmt.Errorf("%s: `sluice-bench %s` failed: %w: %s\n\tonly experiments of both builds can be compared: "+
			"choose it with --scenario and --flows",
			build.name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	run, err := results.Load(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", build.name, err)
	}
	found := map[string]results.Point{}
	for _, p := range run.Points {
		// Other figures, ratios and new flows per second, are derived from these.
		if p.System == sluice && (p.Metric == metricCost || p.Metric == metricBytes) && p.Median() > 0 {
			found[p.Key()] = p
		}
	}
	return found, nil
}

// sameKeys returns an error that names a figure that only one of the builds measured.
func sameKeys(found [2]map[string]results.Point) error {
	for i, other := range [2]int{now: then, then: now} {
		for _, key := range slices.Sorted(maps.Keys(found[i])) {
			if _, both := found[other][key]; !both {
				p := found[i][key]
				return fmt.Errorf("the builds do not measure the same: only %s has %s of %s: choose with --scenario "+
					"and --flows an experiment of both",
					[2]string{now: "this one", then: "the one before"}[i], p.Metric, conditions(p.Params))
			}
		}
	}
	if len(found[now]) == 0 {
		return errors.New("neither build measured a worker: choose another --scenario")
	}
	return nil
}
