package trends

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestTrends: what begins and ends is one line each, with what it was about.
func TestTrends(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
	w := New(log, "host_link_other")
	began := time.Unix(1000, 0)
	for _, c := range []struct {
		at      int // seconds
		drops   map[string]uint64
		used    uint64
		stalled []string
		want    string
	}{
		{0, map[string]uint64{"no_flow": 7}, 10, nil, ""},
		{1, map[string]uint64{"no_flow": 7, "no_route": 2}, 60, nil, `level=INFO msg="packets are dropped" reason=no_route packets=2
level=INFO msg="table is filled to 60 percent" table=flows used=60 capacity=100
`},
		{2, map[string]uint64{"no_flow": 9, "no_route": 5, "host_link_other": 1}, 58, []string{"worker 1"},
			`level=INFO msg="packets are dropped" reason=no_flow packets=2
level=ERROR msg=stalled loop="worker 1"
`},
		{12, map[string]uint64{"no_flow": 10, "no_route": 5}, 95, []string{"worker 1", "control loop"},
			`level=WARN msg="table is filled to 90 percent" table=flows used=95 capacity=100
level=ERROR msg=stalled loop="control loop"
`},
		{31, map[string]uint64{"no_flow": 10, "no_route": 5}, 86, []string{"control loop"},
			`level=INFO msg="no longer stalled" loop="worker 1" lasted=29s
`},
		{32, map[string]uint64{"no_flow": 10, "no_route": 5}, 84, nil,
			`level=INFO msg="packets are no longer dropped" reason=no_route packets=5 lasted=1s
level=INFO msg="table is filled to less than 90 percent" table=flows used=84 capacity=100
level=INFO msg="no longer stalled" loop="control loop" lasted=20s
`},
		{42, map[string]uint64{"no_flow": 10, "no_route": 6}, 0, nil,
			`level=INFO msg="packets are no longer dropped" reason=no_flow packets=3 lasted=10s
level=INFO msg="packets are dropped" reason=no_route packets=1
level=INFO msg="table is filled to less than 70 percent" table=flows used=0 capacity=100
`},
		{43, map[string]uint64{"no_flow": 10, "no_route": 600}, 1, nil, ""},
	} {
		out.Reset()
		w.Look(&Sample{Now: began.Add(time.Duration(c.at) * time.Second), Drops: c.drops,
			Fill: map[string]Fill{"flows": {c.used, 100}, "none": {}}, Stalled: c.stalled})
		if got := strings.ReplaceAll(out.String(), "\n ", "\n"); got != c.want {
			t.Errorf("second %d:\n%swant\n%s", c.at, got, c.want)
		}
	}
}
