package report

import (
	"bytes"
	"slices"
	"testing"

	"sluice.dev/sluice/bench/results"
)

func tailPoint(system, rate, packets, metric string, value float64, curve ...[2]float64) results.Point {
	return results.Point{
		Experiment: "tail", System: system, Metric: metric, Unit: "us", Better: "lower", Samples: []float64{value},
		Params: map[string]string{"rate": rate, "packets": packets, "queues": "2"}, Curve: curve,
	}
}

// The anatomy of the tail is a stack of causes for all systems and rates, and a way for each
// slowest packet; nothing of it is drawn as what other experiments have.
func TestTailFigures(t *testing.T) {
	run := &results.Run{Points: []results.Point{
		tailPoint("sluice", "20000", "beyond p99.9", "asleep", 10),
		tailPoint("sluice", "20000", "beyond p99.9", "work", 20),
		tailPoint("nftables", "200000", "beyond p99.9", "asleep", 0),
		tailPoint("nftables", "200000", "beyond p99.9", "work", 40),
		tailPoint("sluice", "20000", slowest, "work", 3, [2]float64{0, 1}, [2]float64{5, 7}),
		tailPoint("sluice", "20000", slowest, "behind another: hog", 4, [2]float64{1, 5}),
	}}
	list := figures([]*results.Run{run})
	if len(list) != 2 || list[0].Kind != stack || list[1].Kind != way {
		t.Fatalf("figures %+v: want a stack and a way", list)
	}
	s, w := list[0], list[1]
	if want := []string{"sluice, 20k/s", "nftables, 200k/s"}; !slices.Equal(s.Bars, want) {
		t.Errorf("bars %q, want %q", s.Bars, want)
	}
	for i, want := range []series{
		{Name: "asleep", Pairs: [][2]float64{{0, 10}, {1, 0}}}, {Name: "work", Pairs: [][2]float64{{0, 20}, {1, 40}}},
	} {
		if got := s.Series[i]; got.Name != want.Name || !slices.Equal(got.Pairs, want.Pairs) {
			t.Errorf("cause %d of the stack is %+v, want %+v", i, got, want)
		}
	}
	for i, want := range []series{
		{Name: "work", Pairs: [][2]float64{{0, 1}, {5, 7}}},
		{Name: "behind another: hog", Pairs: [][2]float64{{1, 5}}},
	} {
		if got := w.Series[i]; got.Name != want.Name || !slices.Equal(got.Pairs, want.Pairs) {
			t.Errorf("line %d of the way is %+v, want %+v", i, got, want)
		}
	}
	for i, texts := range [][]string{{"sluice, 20k/s", "asleep", "work"}, {"behind another: hog", "work"}} {
		svg, err := list[i].svg()
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			if !bytes.Contains(svg, []byte(text)) {
				t.Errorf("the plot %q does not have %q", list[i].Title, text)
			}
		}
	}
}
