package progress

import (
	"strings"
	"testing"
	"time"
)

func TestProgress(t *testing.T) {
	var out strings.Builder
	now := time.Unix(0, 0)
	p := startAt(&out, 12, func() time.Time { return now })
	for i, what := range []string{"warm-up", "sluice", "at once", "l2fwd"} {
		p.Step(what)
		now = now.Add([]time.Duration{10 * time.Second, 0, 20 * time.Second, 30 * time.Second}[i])
	}
	p.Done()
	const want = `[ 1/12] warm-up
[ 2/12] sluice · 10 s gone, about 1 min 50 s left
[ 4/12] l2fwd · 30 s gone, about 1 min 30 s left
4 of 12 in 1 min 0 s
`
	if out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}
}

// TestMoreStepsThanTotal: a wrong total still counts.
func TestMoreStepsThanTotal(t *testing.T) {
	var out strings.Builder
	now := time.Unix(0, 0)
	p := startAt(&out, 1, func() time.Time { return now })
	p.Step("a")
	now = now.Add(time.Minute)
	p.Step("b")
	if want := "[1/1] a\n[2/2] b · 1 min 0 s gone, about 1 min 0 s left\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}

func TestWeigh(t *testing.T) {
	var out strings.Builder
	now := time.Unix(0, 0)
	p := startAt(&out, 3, func() time.Time { return now }).Weigh(1, 3, 2)
	p.Step("a")
	now = now.Add(10 * time.Second)
	p.Step("b")
	now = now.Add(50 * time.Second)
	p.Step("c")
	want := "[1/3] a\n[2/3] b · 10 s gone, about 50 s left\n[3/3] c · 1 min 0 s gone, about 30 s left\n"
	if out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		400 * time.Millisecond: "0 s", 59600 * time.Millisecond: "1 min 0 s",
		61 * time.Second: "1 min 1 s", 3*time.Hour + 59*time.Second: "3 h 0 min",
	} {
		if got := Short(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}
