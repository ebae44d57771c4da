//go:build root

package conformance

import (
	"context"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/cluster/clustertest"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
)

// againstVariable is a mode of kube-proxy to be given the same probes.
const againstVariable = "SLUICE_AGAINST"

// casesVariable is a regular expression of the cases to run, all if it is empty.
const casesVariable = "SLUICE_CASES"

// chosen is the cases to run, against a mode of kube-proxy if it is not empty.
func chosen(t *testing.T, against string) []*Case {
	pattern, err := regexp.Compile(os.Getenv(casesVariable))
	if err != nil {
		t.Fatalf("%s: %v", casesVariable, err)
	}
	return slices.DeleteFunc(all(), func(c *Case) bool {
		return !pattern.MatchString(c.ID()) ||
			c.leftOut(against) != ""
	})
}

// TestConformance runs every case.
func TestConformance(t *testing.T) {
	clustertest.Need(t)
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces, XDP and AF_XDP")
	}
	if os.Getenv(againstVariable) == ipvs {
		machine.Need(t, machine.IPVS, machine.IPSet)
	}
	ctx, cancel := context.WithTimeout(t.Context(), machine.Slower(14*time.Minute))
	defer cancel()
	began := time.Now()
	r := prepare(ctx, t)
	ready := time.Now()
	if err := r.all(ctx); err != nil {
		t.Errorf("the run ended early: %v", err)
	}
	probed := time.Since(ready)
	list := r.inOrder()
	for _, c := range r.cases {
		t.Run(c.ID(), func(t *testing.T) { judge(t, c, list) })
	}
	report(t, r, list)
	t.Logf("%d cases, %d probes: %.0f s, %.0f s of them after everything had started",
		len(r.cases), len(list), time.Since(began).Seconds(), probed.Seconds())
}

// judge holds Sluice to what a case says.
func judge(t *testing.T, c *Case, list []*result) {
	n := 0
	for _, at := range list {
		if at.c != c {
			continue
		}
		n++
		if got := at.outcomes[0]; got != at.p.want {
			t.Errorf("%s\n\t got %s\n\twant %s", at, got, at.p.want)
		}
	}
	if n == 0 && len(c.steps[0].refuse) == 0 {
		t.Error("no probe")
	}
}

// prepare starts the control plane, writes the first steps, and starts the systems.
func prepare(ctx context.Context, t *testing.T) *run {
	t.Helper()
	began := time.Now()
	binary, err := launch.Build(t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	c := clustertest.Start(ctx, t, cluster.Config{})
	mode := os.Getenv(againstVariable)
	t.Logf("the control plane is ready after %.0f s", time.Since(began).Seconds())
	r := &run{c: c, cases: chosen(t, mode), results: map[*probe]*result{}, logf: t.Logf}
	_, first := r.round(0)
	if err := c.Put(ctx, gatewayNodeObject(gatewayZone)); err != nil {
		t.Fatal(err)
	}
	if err := r.write(ctx, first...); err != nil {
		t.Fatal(err)
	}
	r.add(t, "sluice", func(r *result) string { return r.p.want }, func(w *world) (system, error) {
		return startSluice(ctx, c, w, binary)
	})
	if mode != "" {
		r.add(t, mode, expected(mode), func(w *world) (system, error) { return startKubeProxy(ctx, c, w, mode) })
	}
	for _, x := range r.subjects {
		if err := x.sync(ctx); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s has everything of the first steps after %.0f s", x.name, time.Since(began).Seconds())
	}
	return r
}

// add starts a system in a topology of its own.
func (r *run) add(t *testing.T, name string, wants func(*result) string, start func(*world) (system, error)) {
	t.Helper()
	w, err := newWorld()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Errorf("close the network: %v", err)
		}
		if left, err := w.Leftovers(); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	})
	began := time.Now()
	s, err := start(w)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s has started after %.0f s", name, time.Since(began).Seconds())
	x := &subject{system: s, name: name, prober: newProber(w), wants: wants}
	x.prober.drops = func(reason string) (uint64, error) { return s.dropped(t.Context(), reason) }
	t.Cleanup(func() {
		x.prober.close()
		if t.Failed() {
			t.Logf("%s logged:\n%s", name, s.log())
		}
		if err := s.stop(); err != nil {
			t.Errorf("stop %s: %v", name, err)
		}
	})
	r.subjects = append(r.subjects, x)
}

// report compares the systems and fails for what is not listed.
func report(t *testing.T, r *run, list []*result) {
	if len(r.subjects) < 2 {
		return
	}
	t.Helper()
	mode := r.subjects[1].name
	listed := listedIn(mode)
	n := len(listed)
	for _, at := range list {
		ours, theirs := at.outcomes[0], at.outcomes[1]
		d, ok := listed[at.key()]
		delete(listed, at.key())
		switch {
		case theirs == "" && !ok: // not asked
		case !ok && ours != theirs:
			t.Errorf("not listed: %s\n\tsluice     %s\n\t%s   %s", at.key(), ours, mode, theirs)
		case ok && allows(d.in(mode), theirs) && ours != theirs:
			t.Logf("%s\n\tsluice     %s\n\t%s   %s\n\twhy        %s", at.key(), ours, mode, theirs, d.why)
		case ok && ours == theirs && d.in(mode) != theirs && allows(d.in(mode), theirs): // by chance
			t.Logf("%s: %s, as with %s it may be", at.key(), theirs, mode)
		case ok && ours == theirs:
			t.Errorf("listed, and no difference any more: %s: %s", at.key(), ours)
		case ok:
			t.Errorf("listed as %q: %s\n\tsluice     %s\n\t%s   %s", d.in(mode), at.key(), ours, mode, theirs)
		}
	}
	for where := range listed {
		if os.Getenv(casesVariable) != "" {
			break
		}
		t.Errorf("listed, but there is no such probe: %s", where)
	}
	t.Logf("%d probes end otherwise with kube-proxy in %s mode, all listed unless said above", n, mode)
}
