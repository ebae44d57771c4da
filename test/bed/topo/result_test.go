package topo

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

func TestDeviation(t *testing.T) {
	even := map[string]float64{"a": 1, "b": 1}
	for _, tc := range []struct {
		name    string
		shares  map[string]int64
		weights map[string]float64
		want    float64
	}{
		{"fair", map[string]int64{"a": 50, "b": 50}, even, 0},
		{"one sigma", map[string]int64{"a": 55, "b": 45}, even, 1},
		{"weights", map[string]int64{"a": 75, "b": 25}, map[string]float64{"a": 3, "b": 1}, 0},
		{"silent backend", map[string]int64{"a": 100}, even, 10},
		{"stranger", map[string]int64{"a": 50, "x": 50}, even, math.Inf(1)},
		{"nothing", nil, even, 0},
		{"one backend", map[string]int64{"a": 7}, map[string]float64{"a": 1}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := Result{Shares: tc.shares}
			if got := r.Deviation(tc.weights); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestCollectorBoundsKinds(t *testing.T) {
	c := newCollector()
	for i := range 10 * maxKinds {
		c.failed(errors.New(fmt.Sprint(i)))
		c.answered("b", "c", time.Millisecond)
	}
	r := c.result()
	if len(r.Errors) != maxKinds+1 || r.Failed() != 10*maxKinds || r.Requests != 20*maxKinds {
		t.Errorf("%d kinds, %d failed, %d requests", len(r.Errors), r.Failed(), r.Requests)
	}
}

func TestParseCounters(t *testing.T) {
	c := make(Counters)
	err := parsePairedLines(c, "Tcp: MaxConn InErrs InCsumErrors\nTcp: -1 3 2\nUdp: InErrors\nUdp: 0\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := parseColumns(c, "Ip6InHdrErrors   \t4\nIp6InReceives 9\n"); err != nil {
		t.Fatal(err)
	}
	if got, want := c.Damaged(), []string{"Ip6InHdrErrors=4", "TcpInCsumErrors=2", "TcpInErrs=3"}; !slices.Equal(got,
		want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := c.Since(Counters{"TcpInErrs": 1})["TcpInErrs"]; got != 2 {
		t.Errorf("difference %d", got)
	}
	for _, bad := range []string{"Tcp: A B\nTcp: 1\n", "Tcp: A\nUdp: 1\n"} {
		if parsePairedLines(make(Counters), bad) == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}
