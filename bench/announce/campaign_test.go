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

	"sluice.dev/sluice/bench/cluster/clustertest"
	"sluice.dev/sluice/bench/launch"
	"sluice.dev/sluice/bench/machine"
	"sluice.dev/sluice/bench/topo"
)

// fault stops a part of a program, or takes something from it.
type fault struct {
	what, program string
	// loop is the name of the heartbeat whose loop is stopped (wildcards of path.Match). Otherwise
	// stop is the place where a goroutine is stopped, or begin makes the fault and returns its end.
	loop  string
	stop  launch.Stop
	begin func(*campaign) (end func() error, err error)
	// trigger makes the goroutine come to its place; nil: it comes, or the proof makes it come.
	trigger func(*campaign) error
	// proof succeeds where all goes on; nil: a new Service gets an address and answers.
	proof  func(*campaign) error
	after  time.Duration // from the fault to the proof
	listen time.Duration // how long to ask who says no; 0: 20 s
	within time.Duration // how long somebody has time to say no; 0: saidWithin
	silent string        // why nobody says that it does not go on
}

// proofTime is how long a proof is waited for.
const proofTime = 5 * time.Second

// saidWithin is how long somebody has time to say no: most loops are late after 15 s, a search for
// flows after 60 s, and a minute after that a restart is asked for.
const saidWithin = 80 * time.Second

// row is the result of a fault.
type row struct {
	fault  *fault
	goesOn time.Duration // 0: it does not
	why    error         // it does not
	serves error         // of new connections to the Service that was there
	said   []*sayer
}

// sayer is one of those who are asked whether all is well.
type sayer struct {
	name string
	of   string // the programs whose faults it is to report
	ask  func(context.Context) error

	mu  sync.Mutex
	no  time.Duration // from the fault to the first no; 0: never
	why string
}

// askEvery is the rest between two questions, askTime the longest time for an answer: as the
// kubelet's probes in the chart.
const (
	askEvery = time.Second
	askTime  = 5 * time.Second
)

// run asks until the first no, or until ctx is done.
func (s *sayer) run(ctx context.Context, began time.Time) {
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

func (s *sayer) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return s.ask(ctx)
}

func (s *sayer) says() (no time.Duration, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.no, s.why
}

// inject makes a fault, and returns its result.
func (c *campaign) inject(t *testing.T, f *fault) *row {
	t.Helper()
	r := &row{fault: f, said: slices.DeleteFunc(c.sayers(), func(s *sayer) bool {
		return f.program != ofAPIServer && !strings.Contains(s.of, f.program)
	})}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	began := time.Now()
	end, err := c.begin(f)
	must(t, err)
	var asking sync.WaitGroup
	for _, s := range r.said {
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
	// A loop that stands is to be reported whatever goes on without it.
	if r.goesOn == 0 || r.serves != nil || f.loop != "" {
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

// listen waits for those who say no: for the time of the fault, and until one does.
func (c *campaign) listen(r *row, began time.Time) {
	atLeast, within := max(r.fault.listen, 20*time.Second), cmp.Or(r.fault.within, saidWithin)
	for {
		d := time.Since(began)
		if d >= machine.Slower(within) || d >= atLeast && r.heard() {
			return
		}
		time.Sleep(askEvery / 2)
	}
}

// heard reports whether anybody has said no.
func (r *row) heard() bool {
	return slices.ContainsFunc(r.said, func(s *sayer) bool { no, _ := s.says(); return no > 0 })
}

// log writes who said what.
func (r *row) log(t *testing.T) {
	t.Helper()
	if r.goesOn > 0 {
		t.Logf("goes on after %.1f s", r.goesOn.Seconds())
	} else {
		t.Logf("does not go on: %v", r.why)
	}
	for _, s := range r.said {
		if no, why := s.says(); no > 0 {
			t.Logf("%6.1f s %s: %s", no.Seconds(), s.name, why)
		}
	}
}

// judge fails the test if something stands and nobody says so.
func (r *row) judge(t *testing.T) {
	t.Helper()
	silent := !r.heard() && (r.goesOn == 0 || r.fault.loop != "" || r.serves != nil)
	switch {
	case silent && r.fault.silent == "":
		t.Errorf("silent: nobody says no (new Service: %v, old Service: %v)", r.why, r.serves)
	case !silent && r.fault.silent != "":
		t.Errorf("not silent any more: %s", r.fault.silent)
	}
}

// table is the rows in Markdown.
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
		said := slices.Clone(r.said)
		slices.SortStableFunc(said, func(a, b *sayer) int { return int(a.no - b.no) })
		var list []string
		for _, s := range said {
			if s.no > 0 {
				list = append(list, fmt.Sprintf("%s %.0f", s.name, s.no.Seconds()))
			}
		}
		fmt.Fprintf(&b, "| %s: %s | %s | %s | %s |\n", r.fault.program, r.fault.what, yes(r.serves), yes(r.why),
			strings.Join(list, ", "))
	}
	return b.String()
}

// settles waits until nobody says no, and a new Service answers. That is the one that is asked for:
// the announcer prefers another gateway for longer each time that a VIP is impaired.
func (c *campaign) settles(t *testing.T) {
	t.Helper()
	var last error
	c.well = false
	for end := time.Now().Add(machine.Slower(time.Minute)); time.Now().Before(end); time.Sleep(askEvery) {
		at, err := c.serve(nil)
		errs := []error{c.restart(), err}
		c.base = at
		for _, s := range c.sayers() {
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

// TestFaultCampaign stops one part of gateway, announcer or controller after another. Either all
// goes on, or somebody who is asked says no: no fault is silent.
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
			r.judge(t)
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

// complete fails the test if a loop has a heartbeat, and no fault stops it.
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
