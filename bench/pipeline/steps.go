package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/thread"
	"sluice.dev/sluice/flowtable"
)

// StepsConfig is the configuration of `sluice-bench steps`.
type StepsConfig struct {
	Out    io.Writer
	Loads  []string      // names; nil is all
	Length time.Duration // of each measurement
	Repeat int           // measurements of each load, in turns
	CPU    int           // of the worker; -1: the last one
	JSON   string
}

// StepsDefaults returns the default configuration.
func StepsDefaults() StepsConfig {
	return StepsConfig{Length: 4 * time.Second, Repeat: 3, CPU: -1}
}

// LongStep is the limit of a step's duration.
const LongStep = 100 * time.Microsecond

// stepLoad is an activity beside a steady stream of packets.
type stepLoad struct {
	name  string
	world worldConfig
	flows int // of the stream
	// beside runs on another goroutine until its context is done; nil: nothing runs.
	beside func(ctx context.Context, g *gate) error
	// change modifies the stream; nil: it stays the same.
	change func(f *stepFeed, now time.Time)
}

const (
	stepFlows    = 100_000
	stepCapacity = 1 << 20
	// stepHalfOpen is so low that new flows evict old ones.
	stepHalfOpen = 1 << 13
)

func stepLoads() []stepLoad {
	one := worldConfig{services: 1, backends: 64, capacity: stepCapacity, halfOpen: stepHalfOpen}
	many := one
	many.services, many.backends = manyServices, serviceBackends
	short := one
	short.timeouts = flowtable.DefaultTimeouts()
	short.timeouts.UDPUnreplied = time.Second
	return []stepLoad{
		{name: "nothing", world: one, flows: stepFlows},
		{name: "snapshots", world: many, flows: stepFlows, beside: publishSnapshots},
		{name: "routes", world: one, flows: stepFlows, beside: publishRoutes},
		{name: "expiry", world: short, flows: stepFlows, change: (*stepFeed).expire},
		{name: "counters", world: many, flows: 2 * stepFlows},
		{name: "syns", world: one, flows: stepFlows, change: (*stepFeed).burst},
		{name: "garbage", world: one, flows: stepFlows, beside: makeGarbage},
	}
}

// StepLoads returns the possible names in StepsConfig.Loads.
func StepLoads() (names []string) {
	for _, l := range stepLoads() {
		names = append(names, l.name)
	}
	return names
}

// RunSteps measures the longest step of a worker under each load, prints a table and saves it.
func RunSteps(ctx context.Context, c StepsConfig) error {
	for _, name := range c.Loads {
		if !slices.Contains(StepLoads(), name) {
			return fmt.Errorf("steps: no load %q: there are %s", name, strings.Join(StepLoads(), ", "))
		}
	}
	if c.Repeat < 1 || c.Length <= 0 {
		return errors.New("steps: at least one measurement of some length is needed")
	}
	if c.CPU < 0 {
		c.CPU = runtime.NumCPU() - 1
	}
	thread.SetProcs(1)
	threads, err := thread.NewGroup(thread.Priority{})
	if err != nil {
		return err
	}
	run := results.Begin("in memory, frames ready in the UMEM")
	var rows []*stepRow
	for _, l := range stepLoads() {
		if len(c.Loads) > 0 && !slices.Contains(c.Loads, l.name) {
			continue
		}
		fmt.Fprintf(c.Out, "steps beside %s: opening %d flows, %d times %s\n", l.name, l.flows, c.Repeat, c.Length)
		row, err := c.measure(ctx, threads, &l)
		if err != nil {
			return fmt.Errorf("steps: %s: %w", l.name, err)
		}
		rows = append(rows, row)
		run.Points = append(run.Points, row.points(c.Length)...)
	}
	if err := printSteps(c.Out, rows); err != nil {
		return err
	}
	return run.Finish(c.JSON)
}

// measure makes the load's world, and takes the configured number of measurements.
func (c *StepsConfig) measure(ctx context.Context, threads *thread.Group, l *stepLoad) (*stepRow, error) {
	w, err := newWorld(l.world)
	if err != nil {
		return nil, err
	}
	defer w.close()
	feed := &stepFeed{rnd: rand.New(rand.NewPCG(5, 6))}
	w.start = bootNanos() - uint64(10*time.Minute) // a Runner uses CLOCK_BOOTTIME
	g, err := w.addGateOver(0, 1, feed.over)
	if err != nil {
		return nil, err
	}
	if err := g.open(w.addClients(l.flows, rand.New(rand.NewPCG(1, 2)))); err != nil {
		return nil, err
	}
	if now := bootNanos(); g.now >= now {
		return nil, fmt.Errorf("the machine is up for %s, which is too short to open flows in", time.Duration(now))
	}
	feed.g, feed.load = g, l
	row := &stepRow{load: l.name}
	for range c.Repeat {
		runtime.GC()
		m, err := feed.measure(ctx, c, threads)
		if err != nil {
			return nil, err
		}
		row.list = append(row.list, *m)
	}
	return row, nil
}

// measure runs the worker under the load for the configured time.
func (f *stepFeed) measure(ctx context.Context, c *StepsConfig, threads *thread.Group) (*stepMeasurement, error) {
	r, err := fastpath.NewRunner(fastpath.RunConfig{
		CPU: c.CPU, Threads: threads, Turn: thread.Turn,
		Waiting: fastpath.Waiting{Spin: time.Millisecond, Sleep: 100 * time.Millisecond},
	})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := f.begin(c.CPU); err != nil {
		return nil, err
	}
	defer f.end()
	ran, beside := make(chan error, 1), make(chan error, 1)
	before := readPauses()
	go func() { ran <- r.Run(ctx) }()
	r.Take(f.g.Worker)
	if l := f.load; l.beside == nil {
		beside <- nil
	} else {
		go func() { beside <- l.beside(ctx, f.g) }()
	}
	select {
	case err = <-ran:
		err = errors.Join(err, errors.New("the worker ended by itself"))
		ran <- nil
	case <-time.After(settleSteps + c.Length):
	case <-ctx.Done():
		err = ctx.Err()
	}
	m := &f.m
	after := readPauses()
	m.stops, m.longestStop = after.since(&before)
	// The worker stays without a runner: the next measurement has its own.
	f.g.Do(ctx, func(w *fastpath.Worker) { w.Hand(f.parking()) })
	cancel()
	err = errors.Join(err, <-ran, <-beside, f.failure)
	return m, err
}

// settleSteps is the time at the beginning of a measurement that does not count: it includes cache
// misses and work that became due while no runner stepped the worker.
const settleSteps = 300 * time.Millisecond

func bootNanos() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail on Linux
	return uint64(ts.Nano())
}
