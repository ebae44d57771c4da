//go:build root

package announce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/cluster/clustertest"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// fault stops a part of a program, or takes a resource from it.
type fault struct {
	what, program string
	// loop is the name of the heartbeat whose loop is stopped (wildcards of path.Match). Otherwise
	// stop is the place where a goroutine is stopped, or begin makes the fault and returns its end.
	loop  string
	stop  launch.Stop
	begin func(*campaign) (end func() error, err error)
	// trigger makes the goroutine reach the stop; nil: it does so anyway, or by the proof.
	trigger func(*campaign) error
	// proof succeeds if everything works; nil: a new Service must get an address and answer.
	proof  func(*campaign) error
	after  time.Duration // from the fault to the proof
	listen time.Duration // how long to wait for reports at least; 0: 20 s
	within time.Duration // bound of the time to the first report; 0: reportWithin
	report bool          // it must be reported even if everything works
	silent string        // why nothing reports the fault
}

// proofTime bounds the wait for a proof.
const proofTime = 5 * time.Second

// reportWithin bounds the time from a fault to its first report. Most loops count as stalled after
// 15 s, the search for flows after 60 s, and a restart is requested a minute later.
const reportWithin = 80 * time.Second

// row is the result of a fault.
type row struct {
	fault     *fault
	goesOn    time.Duration // until everything works; 0: it does not
	why       error         // why it does not
	serves    error         // of new connections to the first Service
	reporters []*reporter
}

// reporter is a place where an operator or another program sees that a program has failed: its
// status, a probe, a route, the Lease.
type reporter struct {
	name string
	of   string // the programs whose faults it can report
	ask  func(context.Context) error

	mu  sync.Mutex
	no  time.Duration // from the fault to the first report; 0: none
	why string
}

// askEvery is the pause between two requests, askTime bounds the wait for an answer. The kubelet's
// probes in the chart have the same.
const (
	askEvery = time.Second
	askTime  = 5 * time.Second
)

// run repeats the request until the first report of a fault, or until ctx is done.
func (s *reporter) run(ctx context.Context, began time.Time) {
	for ctx.Err() == nil {
		if err := s.once(ctx); err != nil && ctx.Err() == nil {
			s.mu.Lock()
			s.no, s.why = time.Since(began), strings.Join(strings.Fields(err.Error()), " ")
			s.mu.Unlock()
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(askEvery):
		}
	}
}

func (s *reporter) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return s.ask(ctx)
}

func (s *reporter) failure() (no time.Duration, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.no, s.why
}

// inject makes a fault, and returns its result.
func (c *campaign) inject(t *testing.T, f *fault) *row {
	t.Helper()
	r := &row{fault: f, reporters: slices.DeleteFunc(c.reporters(), func(s *reporter) bool {
		return f.program != ofAPIServer && !strings.Contains(s.of, f.program)
	})}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	began := time.Now()
	end, err := c.begin(f)
	must(t, err)
	var asking sync.WaitGroup
	for _, s := range r.reporters {
		asking.Go(func() { s.run(ctx, began) })
	}
	if f.trigger != nil {
		check(t, f.trigger(c))
	}
	time.Sleep(f.after)
	proof := f.proof
	if proof == nil {
		proof = (*campaign).newService
	}
	if r.why = proof(c); r.why == nil {
		r.goesOn = time.Since(began)
	}
	r.serves = c.serves()
	if s := c.stops[f.program]; f.begin == nil {
		check(t, topo.Until(c.ctx, machine.Slower(10*time.Second), 10*time.Millisecond, func(context.Context) error {
			if !s.Stands() {
				return errors.New("no goroutine has come to the place where it is to be stopped")
			}
			return nil
		}))
	}
	if r.mustBeReported() {
		c.listen(r, began)
	} else {
		time.Sleep(time.Until(began.Add(askTime + askEvery)))
	}
	cancel()
	asking.Wait()
	check(t, end())
	return r
}

// begin makes a fault.
func (c *campaign) begin(f *fault) (end func() error, err error) {
	if f.begin != nil {
		return f.begin(c)
	}
	s := c.stops[f.program]
	if f.loop != "" {
		s.Stop(f.loop)
	} else {
		s.Stop(f.stop.Name)
	}
	return func() error { s.Go(); return nil }, nil
}

// listen waits for reports: for at least the fault's time, and until there is one.
func (c *campaign) listen(r *row, began time.Time) {
	atLeast, within := max(r.fault.listen, 20*time.Second), cmp.Or(r.fault.within, reportWithin)
	for {
		d := time.Since(began)
		if d >= machine.Slower(within) || d >= atLeast && r.reported() {
			return
		}
		time.Sleep(askEvery / 2)
	}
}

// mustBeReported reports whether a fault may not be silent: a change or new connections fail, or a
// loop with a heartbeat has stopped, or another part that everything works without for now.
func (r *row) mustBeReported() bool {
	return r.goesOn == 0 || r.serves != nil || r.fault.loop != "" || r.fault.report
}

// reported reports whether there is a report of the fault.
func (r *row) reported() bool {
	return slices.ContainsFunc(r.reporters, func(s *reporter) bool { no, _ := s.failure(); return no > 0 })
}

// log writes the reports.
func (r *row) log(t *testing.T) {
	t.Helper()
	if r.goesOn > 0 {
		t.Logf("goes on after %.1f s", r.goesOn.Seconds())
	} else {
		t.Logf("does not go on: %v", r.why)
	}
	for _, s := range r.reporters {
		if no, why := s.failure(); no > 0 {
			t.Logf("%6.1f s %s: %s", no.Seconds(), s.name, why)
		}
	}
}

// check fails the test if the fault is silent.
func (r *row) check(t *testing.T) {
	t.Helper()
	silent := !r.reported() && r.mustBeReported()
	switch {
	case silent && r.fault.silent == "":
		t.Errorf("silent: nothing reports it (new Service: %v, old Service: %v)", r.why, r.serves)
	case !silent && r.fault.silent != "":
		t.Errorf("not silent any more: %s", r.fault.silent)
	}
}

// table returns the rows in Markdown.
func table(rows []*row) string {
	var b strings.Builder
	b.WriteString("| stopped | connections | change | who says no, after seconds |\n| --- | --- | --- | --- |\n")
	yes := func(err error) string {
		if err != nil {
			return "no"
		}
		return "yes"
	}
	for _, r := range rows {
		first := slices.Clone(r.reporters)
		slices.SortStableFunc(first, func(a, b *reporter) int { return int(a.no - b.no) })
		var list []string
		for _, s := range first {
			if s.no > 0 {
				list = append(list, fmt.Sprintf("%s %.0f", s.name, s.no.Seconds()))
			}
		}
		fmt.Fprintf(&b, "| %s: %s | %s | %s | %s |\n", r.fault.program, r.fault.what, yes(r.serves), yes(r.why),
			strings.Join(list, ", "))
	}
	return b.String()
}

// settles waits until no reporter shows a fault and a new Service answers. It uses a new Service
// because the announcer damps a VIP for longer each time that it is impaired.
func (c *campaign) settles(t *testing.T) {
	t.Helper()
	var last error
	c.well = false
	for end := time.Now().Add(machine.Slower(time.Minute)); time.Now().Before(end); time.Sleep(askEvery) {
		at, err := c.serve(nil)
		errs := []error{c.restart(), err}
		c.base = at
		for _, s := range c.reporters() {
			if err := s.once(c.ctx); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
			}
		}
		if last = errors.Join(errs...); last == nil {
			c.well = true
			return
		}
	}
	t.Fatalf("not all is well a minute after: %v\n%s", last, c.Logs())
}

// TestFaultCampaign stops one part of the gateway, the announcer or the controller after another.
// Either everything continues to work, or a reporter shows the fault: no fault is silent.
func TestFaultCampaign(t *testing.T) {
	onlyFull(t)
	clustertest.Need(t)
	c := newCampaign(t)
	c.well = true
	var rows []*row
	for i := range faults {
		f := &faults[i]
		if end, ok := t.Deadline(); !c.well || ok && time.Until(end) < 100*time.Second {
			t.Errorf("ends before %s %s", f.program, f.what)
			break
		}
		t.Run(strings.ReplaceAll(f.program+" "+f.what, " ", "-"), func(t *testing.T) {
			c.settles(t)
			r := c.inject(t, f)
			r.log(t)
			r.check(t)
			rows = append(rows, r)
			if t.Failed() {
				t.Log(c.Logs())
			}
		})
	}
	if len(rows) > 0 {
		t.Logf("\n%s", table(rows))
	}
	c.complete(t)
}

// complete fails the test if a loop has a heartbeat but no fault stops it.
func (c *campaign) complete(t *testing.T) {
	t.Helper()
	for program, s := range c.stops {
		loops, err := s.Loops()
		must(t, err)
		for _, name := range loops {
			if !slices.ContainsFunc(faults, func(f fault) bool {
				is, _ := path.Match(f.loop, name)
				return is && f.program == program
			}) {
				t.Errorf("%s: no fault stops %q", program, name)
			}
		}
	}
}
