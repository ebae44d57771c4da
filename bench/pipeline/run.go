package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/machine"
)

// Config holds the command's flags.
type Config struct {
	Out       io.Writer
	Scenarios []string // names; nil is all
	Flows     []int    // of the sweep; nil is 1k, 100k, 1M
	Full      bool     // the sweep ends at 10M flows
	IPv4      bool
	IPv6      bool
	Repeat    int // samples of each point
	Chunks    int // of each sample
	CPU       int // -1: the last one
	JSON      string
	Reference bool   // also run the C reference
	Profile   string // file for a CPU profile of the run, or empty

	// Before is an older sluice-bench, or its directory. Its worker takes turns with the worker of
	// Bench, which is this build. Then nothing else is measured.
	Before, Bench string
	FailSlower    bool // return an error if a figure is worse than before
}

// Defaults returns the default configuration.
func Defaults() Config {
	return Config{IPv4: true, IPv6: true, Reference: true, Repeat: 5, Chunks: 200, CPU: -1}
}

// runner is one run of the command.
type runner struct {
	Config
	ctx     context.Context
	program *program // the reference; nil without one
	points
	rnd *rand.Rand
}

// scenario is one experiment.
type scenario struct {
	name string
	run  func(*runner) error
}

var scenarios = []scenario{
	{"steady", (*runner).steady},
	{"new-flows", (*runner).newFlows},
	{"fill", (*runner).fill},
	{"collisions", (*runner).collisions},
	{"two-workers", (*runner).twoWorkers},
	{"services", (*runner).services},
	{"updates", (*runner).updates},
	{"capture", (*runner).capture},
	{"size", (*runner).size},
}

// Scenarios returns the possible names in Config.Scenarios.
func Scenarios() (names []string) {
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

// Run measures the requested scenarios, prints the figures and saves them.
func Run(ctx context.Context, c Config) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.Before != "" {
		return runBefore(ctx, c)
	}
	// No garbage collection while packets are measured: the worker makes no garbage, but this
	// harness does. Samples collect before they begin.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	r := &runner{Config: c, ctx: ctx, rnd: rand.New(rand.NewPCG(1, 2))}
	run := results.Begin("in memory, frames ready in the UMEM")
	if c.Reference {
		var err error
		if r.program, err = buildReference(ctx); err != nil {
			return fmt.Errorf("pipeline: %w", err)
		}
		defer r.program.remove()
		run.Machine.Notes = "reference built by " + r.program.compiler + ", -O3 -march=native"
	}
	err := r.profiled(func() error { return machine.OnCPU(c.CPU, r.all) })
	if ctx.Err() != nil {
		err = ctx.Err() // not an error of the reference, which ended with the context
	}
	if tableErr := r.table(c.Out); err == nil {
		err = tableErr
	}
	if err != nil {
		return err
	}
	run.Points = r.list
	return run.Finish(c.JSON)
}

func (c *Config) check() error {
	for _, s := range c.Scenarios {
		if !slices.Contains(Scenarios(), s) {
			return fmt.Errorf("pipeline: no scenario %q: there are %s", s, strings.Join(Scenarios(), ", "))
		}
	}
	if c.Repeat < 1 || c.Chunks < 1 {
		return errors.New("pipeline: at least one repetition of one chunk is needed")
	}
	if err := c.checkBefore(); err != nil {
		return fmt.Errorf("pipeline: %w", err)
	}
	if c.CPU < 0 {
		c.CPU = runtime.NumCPU() - 1
	}
	for _, n := range c.Flows {
		if n < 1 {
			return fmt.Errorf("pipeline: %d flows: at least 1 is needed", n)
		}
	}
	if !c.IPv4 && !c.IPv6 {
		return errors.New("pipeline: neither IPv4 nor IPv6 is left to measure")
	}
	if len(c.Flows) == 0 {
		c.Flows = []int{1_000, 100_000, 1_000_000}
		if c.Full {
			c.Flows = append(c.Flows, 10_000_000)
		}
	}
	return nil
}

// profiled runs f, under a CPU profile if requested. In the profile only Worker.Step is relevant,
// the rest is preparation.
func (r *runner) profiled(f func() error) error {
	if r.Profile == "" {
		return f()
	}
	out, err := os.Create(r.Profile)
	if err != nil {
		return fmt.Errorf("pipeline: %w", err)
	}
	defer out.Close()
	if err := pprof.StartCPUProfile(out); err != nil {
		return fmt.Errorf("pipeline: %w", err)
	}
	defer pprof.StopCPUProfile()
	return f()
}

func (r *runner) all() error {
	for _, s := range scenarios {
		if len(r.Scenarios) > 0 && !slices.Contains(r.Scenarios, s.name) {
			continue
		}
		if err := s.run(r); err != nil {
			return fmt.Errorf("pipeline: %s: %w", s.name, err)
		}
	}
	return nil
}

// say prints a line of progress.
func (r *runner) say(format string, args ...any) { fmt.Fprintf(r.Out, format+"\n", args...) }
