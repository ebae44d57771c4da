package gaps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"sluice.dev/sluice/bench/progress"
	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/bench/updates"
)

// Config selects what to measure.
type Config struct {
	Variants  []string // names, or "all"
	Windows   int      // of each, and of the floor beside it
	Window    time.Duration
	Services  int
	Endpoints int // of each
	Rate      int // changes a second
	CPU       int // the worker's; -1 is the last that the process may use
	// Child is the command line of a process that calls RunChild with one more argument.
	Child    []string
	Profiles string // directory for what each variant allocated, or ""
	JSON     string // file for the results.Run, or ""
	Out      io.Writer
	Progress io.Writer

	cpus       []int // that this process may use
	population updates.Config
}

// Defaults is the measurement as the project's target names it.
func Defaults() Config {
	return Config{
		Variants: []string{"sluice"}, Windows: 20, Window: 10 * time.Second, Services: 10_000, Endpoints: 10, Rate: 100,
		CPU: -1,
		Out: os.Stdout, Progress: os.Stderr,
	}
}

// Target is how many gaps of more than 1 ms in 10 s a worker may have above the floor.
const Target = 2

func (c *Config) check() (list []Variant, err error) {
	if list, err = choose(c.Variants); err != nil {
		return nil, err
	}
	if c.cpus, err = allowed(); err != nil {
		return nil, err
	}
	if c.Profiles != "" {
		if err := os.MkdirAll(c.Profiles, 0o755); err != nil {
			return nil, fmt.Errorf("directory for profiles: %w", err)
		}
	}
	if c.CPU < 0 {
		c.CPU = c.cpus[len(c.cpus)-1]
	}
	switch {
	case !slices.Contains(c.cpus, c.CPU):
		return nil, fmt.Errorf("CPU %d is none of those that this process may use: %v", c.CPU, c.cpus)
	case c.Windows < 1 || c.Window < 100*time.Millisecond || c.Rate < 1 || c.Rate > 10_000:
		return nil, fmt.Errorf("%d windows of %s, %d changes a second: at least 1, 100ms, and 1 to 10000", c.Windows,
			c.Window, c.Rate)
	case c.Services < 10 || c.Endpoints < 1 || c.Services*(c.Endpoints+1) > 4<<20:
		return nil, fmt.Errorf("%d Services of %d endpoints: at least 10 and 1, and at most %d endpoints are possible",
			c.Services, c.Endpoints, 4<<20)
	case len(c.cpus) < 2:
		return nil, fmt.Errorf("this process may use CPU %v alone: %w", c.cpus, errOneCPU)
	}
	c.population = updates.Defaults()
	c.population.Services, c.population.Endpoints = c.Services, c.Endpoints
	return list, nil
}

var errOneCPU = errors.New("the worker needs one and the API server another")

// round is a window of the floor and the window of a variant after it.
type round struct{ floor, window Window }

// Run measures, prints a table and saves what came out.
func Run(ctx context.Context, c Config) (run *results.Run, err error) {
	list, err := c.check()
	if err != nil {
		return nil, err
	}
	run = results.Begin("none: a link that never has a packet")
	// This process is what is elsewhere in a real cluster; where there is one CPU for all that
	// is not a worker, it shares that.
	others := slices.DeleteFunc(slices.Clone(c.cpus), func(cpu int) bool { return cpu == c.CPU })
	if err := bind(others); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bind(c.cpus)) }()
	f, err := newFloor(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	subjects, err := c.start(ctx, list)
	defer func() {
		for _, s := range subjects {
			err = errors.Join(err, s.close())
		}
	}()
	if err != nil {
		return nil, err
	}
	rounds, err := c.measure(ctx, f, subjects)
	if err != nil {
		return nil, err
	}
	for i, v := range list {
		run.Points = append(run.Points, c.points(v.Name, rounds[i])...)
	}
	return run, errors.Join(c.print(list, rounds), run.Finish(c.JSON))
}

func (c *Config) start(ctx context.Context, list []Variant) (subjects []*subject, err error) {
	for _, v := range list {
		fmt.Fprintf(c.Progress, "starting variant %s: %d Services of %d endpoints\n", v.Name, c.Services, c.Endpoints)
		s, err := newSubject(ctx, c, v)
		if err != nil {
			return subjects, err
		}
		subjects = append(subjects, s)
	}
	return subjects, nil
}

// measure alternates between the floor and the variants. The order of the variants is another in
// each round, so that what a machine does periodically meets all of them.
func (c *Config) measure(ctx context.Context, f *floor, subjects []*subject) ([][]round, error) {
	rounds := make([][]round, len(subjects))
	p := progress.Start(c.Progress, c.Windows*len(subjects))
	for n := range c.Windows {
		for _, i := range rand.Perm(len(subjects)) {
			p.Step(fmt.Sprintf("round %d: C, %s", n+1, subjects[i].Name))
			var r round
			var err error
			if r.floor, err = f.window(ctx, c.CPU, c.Window); err != nil {
				return nil, err
			}
			if r.window, err = subjects[i].window(ctx, c.Window, c.Rate); err != nil {
				return nil, err
			}
			if r.window.Published == 0 && !subjects[i].Quiet {
				return nil, fmt.Errorf("variant %s: nothing was published in a window of %s: changes do not arrive",
					subjects[i].Name, c.Window)
			}
			rounds[i] = append(rounds[i], r)
		}
	}
	p.Done()
	return rounds, nil
}
