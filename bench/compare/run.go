package compare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"sluice.dev/sluice/bench/paired"
	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/host/autogroup"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/procstat"
	"sluice.dev/sluice/test/bed/progress"
	"sluice.dev/sluice/test/bed/scratch"
	"sluice.dev/sluice/test/bed/topo"
)

// Run compares, prints tables, and returns the figures. A missed target is no error. A system that
// fails is left out from then on, is shown as failed, and becomes an error at the end; the figures
// of the other systems are saved.
func Run(ctx context.Context, c Config) (run *results.Run, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	older, err := c.findBefore(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := launch.Sweep(); err != nil {
		return nil, err
	}
	link := "veth pairs without a bridge, native XDP, copy mode; offloads off"
	if c.Bulk {
		link += " but for " + withOffloads + "; TCP " + congestionControl
	}
	run = results.Begin(link)
	s := newStage(&c)
	s.before = older
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	if err := s.noteLoad(ctx, run); err != nil {
		return nil, err
	}
	if err := s.noteBefore(run); err != nil {
		return nil, err
	}
	slices.Sort(c.Services)
	var bar *progress.Progress // begins when the first kube-proxy has its Services
	var failed []error
	var rows []paired.Row
	for _, n := range c.Services {
		for _, from := range c.Rows {
			if err := s.prepare(ctx, n, from); err != nil {
				return nil, err
			}
			if bar == nil {
				bar = progress.Start(c.Progress, c.steps())
			}
			found, err := s.compare(ctx, bar)
			if err != nil {
				return nil, err
			}
			points := found.points()
			run.Points = append(run.Points, points...)
			for _, f := range found.systems {
				failed = append(failed, f.failed)
			}
			if err := found.print(c.Out, points); err != nil {
				return nil, err
			}
			rows = append(rows, found.beforeRows()...)
		}
	}
	bar.Done()
	if c.FailSlower {
		failed = append(failed, paired.Fail(rows))
	}
	return run, errors.Join(run.Finish(c.JSON), errors.Join(failed...))
}

// goFirst puts the threads of this session ahead of all others until the caller calls undo. If the
// process is killed, the session keeps the value.
func goFirst() (undo func() error, err error) {
	s, err := autogroup.Open()
	if err == nil {
		if err = s.SetNice(-20); err != nil {
			err = errors.Join(err, s.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("put this session before others: %w", err)
	}
	return func() error { return errors.Join(s.SetNice(s.Usual()), s.Close()) }, nil
}

// open makes the parts that all numbers of Services share. A missing prerequisite breaks only the
// system that needs it.
func (s *stage) open(ctx context.Context) (err error) {
	if s.First {
		if s.undoFirst, err = goFirst(); err != nil {
			return err
		}
	}
	if s.temporary, err = scratch.Temporary("sluice-compare-"); err != nil {
		return err
	}
	for _, k := range s.Config.kinds(twoQueues()) {
		var err error
		switch base := k.base(); {
		case (base == "asavie" || base == "asavie-drained") && s.asavie == "":
			s.asavie, err = buildAsavie(ctx, s.temporary)
		case k.cluster && s.control == nil:
			s.control, err = startControl(ctx, s.protocol(), s.Progress)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			s.broken[k.base()] = err
		}
	}
	return nil
}

// close takes down the kept subjects and the control plane.
func (s *stage) close() error {
	err := s.closeKept()
	if s.control != nil {
		err = errors.Join(err, s.control.close())
	}
	if s.undoFirst != nil {
		err = errors.Join(err, s.undoFirst())
	}
	return errors.Join(err, os.RemoveAll(s.temporary))
}

// compare is a run with one number of Services and one row of senders.
func (s *stage) compare(ctx context.Context, bar *progress.Progress) (*comparison, error) {
	found := &comparison{Config: s.Config, Senders: s.Senders, services: s.services}
	for _, k := range s.Config.kinds(s.Senders) {
		found.systems = append(found.systems, &figures{kind: k})
	}
	for _, part := range s.parts() {
		if part.before != nil {
			part.before(found)
		}
		for round := range part.rounds(s.Config) {
			if part.round != nil {
				if err := part.round(ctx, found); err != nil {
					return nil, err
				}
			}
			for _, f := range turn(found.systems, round) {
				if part.of != nil && !part.of(f.kind.name) {
					continue
				}
				bar.Step(fmt.Sprintf("%d Services, %v, %s, round %d: %s", s.services, s.Senders, part.name, round+1,
					f.kind.name))
				if f.failed != nil || found.unpaired(f) {
					continue
				}
				f.failed = s.with(ctx, f.kind, func(ctx context.Context, x *subject) error {
					return part.measure(ctx, s,
						x, found, f)
				})
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
			}
		}
	}
	return found, s.closeKept()
}

// turn returns the order of a round. Each round begins with the next system, so that no system
// always runs after the same one, whose network the kernel may still be removing. An older build
// and this one stay adjacent, and each comes first in every other round.
func turn(systems []*figures, round int) []*figures {
	var units [][]*figures
	for i := 0; i < len(systems); i++ {
		if i+1 < len(systems) && systems[i+1].kind.name == paired.Before {
			pair := []*figures{systems[i], systems[i+1]}
			if round%2 == 1 {
				slices.Reverse(pair)
			}
			units = append(units, pair)
			i++
			continue
		}
		units = append(units, systems[i:i+1])
	}
	first := round % max(1, len(units))
	return slices.Concat(append(slices.Clone(units[first:]), units[:first]...)...)
}

// prepare starts the kube-proxies before anything is measured.
func (s *stage) prepare(ctx context.Context, services int, from Senders) error {
	s.services, s.Senders = services, from
	if s.control == nil {
		return nil
	}
	if err := s.control.hold(ctx, s.services); err != nil {
		return err
	}
	for _, k := range s.Config.kinds(from) {
		if !k.cluster || s.kept[k.base()] != nil || s.broken[k.base()] != nil {
			continue
		}
		sub, err := s.build(ctx, k)
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		if err != nil {
			s.broken[k.base()] = err
			continue
		}
		s.kept[k.base()] = sub
		if err := sub.system.(*kubeProxy).freeze(true); err != nil {
			return err
		}
	}
	return s.control.cluster.Freeze()
}

// quietShare is the share of the processors that may be busy before measuring.
const quietShare = 0.05

// noteLoad records in the run how busy the machine was before the benchmark: processor time per
// packet includes the time of all other processes.
func (s *stage) noteLoad(ctx context.Context, run *results.Run) error {
	u, err := procstat.During(func() error { return topo.Pause(ctx, time.Second) })
	if err != nil {
		return err
	}
	share := u.ShareOf(u.Busy)
	run.Machine.Notes = fmt.Sprintf("%.0f %% of all processors busy before the measurement", 100*share)
	if s.First {
		run.Machine.Notes += "; the benchmark's session has priority over all others"
	}
	if share > quietShare {
		fmt.Fprintf(s.Progress, "the machine is not quiet: %s; figures will be wrong, above all processor time\n",
			run.Machine.Notes)
	}
	return nil
}

// part is one experiment. All rounds of a part come before the next part, because that needs the
// medians.
type part struct {
	name    string
	of      func(system string) bool // selects the systems to measure; nil: all
	once    bool                     // in one round
	before  func(*comparison)
	round   func(context.Context, *comparison) error // runs before the systems of each round
	measure func(context.Context, *stage, *subject, *comparison, *figures) error
}

// rounds is how often each system is measured.
func (p *part) rounds(c *Config) int {
	if p.once {
		return 1
	}
	return c.Repeat
}

func (c *Config) parts() []part {
	second := part{name: "CPU and latency", before: (*comparison).chooseRate, measure: measureCost}
	if c.Quick {
		second.name, second.measure = "CPU", measureCPU
	}
	first := part{name: "throughput", measure: measureThroughput}
	switch {
	case c.Bulk:
		return []part{{name: "bulk", measure: measureBulk}}
	case c.atRates():
		rates := part{name: "rates", before: (*comparison).chooseRates, round: measureFloor, measure: measureAt}
		if len(c.AtShares) == 0 {
			return []part{rates}
		}
		return []part{{name: "no-drop rate", of: isNftables, once: true, measure: measureNoDrop}, rates}
	case c.Rates:
		return []part{first}
	}
	return []part{first, second}
}

// steps is the total number of measurements.
func (c *Config) steps() (n int) {
	for _, from := range c.Rows {
		for _, p := range c.parts() {
			for _, k := range c.kinds(from) {
				if p.of == nil || p.of(k.name) {
					n += len(c.Services) * p.rounds(c)
				}
			}
		}
	}
	return n
}
