package pipeline

import (
	"context"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/thread"
)

// TestSteps: a delay of the worker's goroutine by 2 ms appears as steps of 2 ms, attributed to the
// Go runtime because the goroutine slept; the empty loop beside it has no such steps.
func TestSteps(t *testing.T) {
	const held = 2 * time.Millisecond
	threads, err := thread.NewGroup(thread.Priority{})
	if err != nil {
		t.Fatal(err)
	}
	l := &stepLoad{
		name: "a sleep", flows: 1000,
		world: worldConfig{services: 1, backends: 8, capacity: 1 << 14, halfOpen: 1 << 10},
		beside: func(ctx context.Context, g *gate) error {
			for ctx.Err() == nil {
				g.Do(ctx, func(*fastpath.Worker) { time.Sleep(held) })
			}
			return nil
		},
		change: (*stepFeed).burst,
	}
	c := StepsConfig{Length: 200 * time.Millisecond, Repeat: 2, CPU: 0}
	row, err := c.measure(t.Context(), threads, l)
	if err != nil {
		t.Fatal(err)
	}
	// On a machine where threads wait for a CPU, fewer steps fit into a measurement.
	for few(row, held) && c.Length < 10*time.Second {
		c.Length *= 4
		if row, err = c.measure(t.Context(), threads, l); err != nil {
			t.Fatal(err)
		}
	}
	for i := range row.list {
		m := &row.list[i]
		// A thread that waits for its CPU also makes a long step.
		if n := m.worker.over(held, longestStep); n < 5 || m.worker.slept < int(n)/2 {
			t.Errorf("measurement %d: %d steps of 2 ms, and %d that slept; want at least 5, most of which slept",
				i, n, m.worker.slept)
		}
		if m.worker.wall.TotalCount() < 10 || m.floor.wall.TotalCount() < 10 {
			t.Errorf("measurement %d: %d steps, %d of the empty loop: want dozens", i, m.worker.wall.TotalCount(),
				m.floor.wall.TotalCount())
		}
		if p := time.Duration(m.floor.cpu.ValueAtQuantile(50)); p > held/2 {
			t.Errorf("measurement %d: a step of the empty loop takes %s", i, p)
		}
	}
	points := row.points(c.Length)
	if want := 2*len(stepFigures) + 1; len(points) != want {
		t.Fatalf("%d points, want %d", len(points), want)
	}
	for i := range points {
		if p := &points[i]; len(p.Samples) != c.Repeat {
			t.Errorf("%s of %s has %d samples, want %d", p.Metric, p.System, len(p.Samples), c.Repeat)
		}
	}
}

// few reports whether a measurement has too few steps for the checks.
func few(row *stepRow, held time.Duration) bool {
	return slices.ContainsFunc(row.list, func(m stepMeasurement) bool {
		return m.worker.over(held, longestStep) < 5 || m.worker.wall.TotalCount() < 10 || m.floor.wall.TotalCount() < 10
	})
}

// TestStepsRefuses: impossible measurements are rejected before anything is built.
func TestStepsRefuses(t *testing.T) {
	for _, c := range []StepsConfig{
		{Loads: []string{"storms"}, Length: time.Second, Repeat: 1}, {Length: time.Second}, {Repeat: 1},
	} {
		if err := RunSteps(t.Context(), c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}
