package pipeline

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/bench/results"
)

// TestOrder: in two rounds each build comes first once.
func TestOrder(t *testing.T) {
	for round, want := range [][2]int{{then, now}, {now, then}, {then, now}} {
		if got := order(round); got != want {
			t.Errorf("round %d: %v, want %v", round, got, want)
		}
	}
}

// TestUnits: the sweep is divided by family and flows; a scenario without flows is one piece.
func TestUnits(t *testing.T) {
	c := Defaults()
	c.Scenarios, c.Flows = []string{"fill", "steady"}, []int{10, 20}
	var got []string
	for _, u := range (&beforeRun{Config: c}).units() {
		got = append(got, fmt.Sprintf("%s %v", u, (&beforeRun{Config: c}).args(u)[:2]))
	}
	want := []string{"steady ipv4, 10 flows [--ipv4=true --ipv6=false]",
		"steady ipv4, 20 flows [--ipv4=true --ipv6=false]",
		"steady ipv6, 10 flows [--ipv4=false --ipv6=true]", "steady ipv6, 20 flows [--ipv4=false --ipv6=true]",
		"fill [--ipv4=true --ipv6=true]"}
	if !slices.Equal(got, want) {
		t.Errorf("units %q, want %q", got, want)
	}
}

// TestParseSample: a request that a build does not support is an error, not another measurement.
func TestParseSample(t *testing.T) {
	for _, l := range (&runner{}).loads() {
		if got, chunks, err := parseSample(sampleRequest(l, 7)); err != nil || got != l || chunks != 7 {
			t.Errorf("%+v: %+v of %d, %v", l, got, chunks, err)
		}
	}
	for _, line := range []string{
		"", "sample hot clients", "sample tepid clients 7", "sample hot servers 7", "sample hot clients 0",
		"sample hot clients 7 serial", "packet 00",
	} {
		if l, _, err := parseSample(line); err == nil {
			t.Errorf("%q is %+v", line, l)
		}
	}
}

// TestRunTurns requests two samples from a process.
func TestRunTurns(t *testing.T) {
	c := Defaults()
	c.Reference, c.IPv4, c.Flows = false, false, []int{100}
	requests := sampleRequest(load{}, 2) + "\n" + sampleRequest(load{mixed: true}, 2) + "\n"
	var out bytes.Buffer
	if err := RunTurns(t.Context(), c, strings.NewReader(requests), &out); err != nil {
		t.Fatal(err)
	}
	var one, other float64
	if n, err := fmt.Sscanf(out.String(), "ready\nns %f\nns %f\n", &one, &other); n != 2 || one <= 0 || other <= 0 {
		t.Errorf("%q: %v", &out, err)
	}
	c.IPv4 = true
	if err := RunTurns(t.Context(), c, strings.NewReader(""), io.Discard); err == nil {
		t.Error("two families at once")
	}
}

// TestSameKeys: a figure that only one build measured is an error that names it.
func TestSameKeys(t *testing.T) {
	point := func(flows string) map[string]results.Point {
		p := results.Point{Params: map[string]string{"scenario": "steady", "flows": flows}, Metric: metricCost}
		return map[string]results.Point{p.Key(): p}
	}
	for _, c := range []struct {
		then, now map[string]results.Point
		want      string
	}{
		{point("1"), point("1"), ""},
		{nil, point("1"), "only this one has ns_per_packet of steady flows=1"},
		{point("2"), nil, "only the one before has ns_per_packet of steady flows=2"},
		{nil, nil, "neither build"},
	} {
		err := sameKeys([2]map[string]results.Point{then: c.then, now: c.now})
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// TestOlderBuildRefuses: the message contains the older build's error about an unknown flag, and a
// remedy.
func TestOlderBuildRefuses(t *testing.T) {
	dir := t.TempDir()
	older := filepath.Join(dir, "older")
	if err := os.WriteFile(older, []byte("#!/bin/sh\necho 'sluice-bench: unknown flag: --windows' >&2\nexit 1\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	b := &beforeRun{Config: Config{Chunks: 1}, ctx: context.Background(), dir: dir}
	_, err := b.runOne(build{before, older}, unit{scenario: "steady", v4: true, flows: 10})
	if err == nil || !strings.Contains(err.Error(), "unknown flag: --windows") || !strings.Contains(err.Error(),
		"choose it with --scenario") {
		t.Error(err)
	}
}
