package procstat

import (
	"testing"
	"time"
)

func TestUsage(t *testing.T) {
	read := func(s string) Usage {
		u, err := parse([]byte(s))
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	zero := time.Unix(100, 0)
	a := read("cpu  10 0 20 1000 5 1 2 7 0 0\ncpu0 1 0 0 0 0 0 0 0 0 0\ncpu1 1 0 0 0 0 0 0 0 0 0\nintr 1\n")
	b := read("cpu  30 10 60 1050 5 1 12 17 0 0\ncpu0 1 0 0 0 0 0 0 0 0 0\ncpu1 1 0 0 0 0 0 0 0 0 0\nintr 2\n")
	a.At, b.At = zero, zero.Add(time.Second)
	want := Spent{
		Busy: 1400 * time.Millisecond, Stolen: 100 * time.Millisecond, Elapsed: time.Second,
		User: 300 * time.Millisecond, System: 400 * time.Millisecond, Interrupts: 100 * time.Millisecond, CPUs: 2,
	}
	if got := b.Since(a); got != want {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if got := want.ShareOf(want.Stolen); got != 0.05 {
		t.Errorf("%g of all processors was stolen, want 0.05", got)
	}
	for _, text := range []string{"", "cpu 1 2 3\n", "intr 1 2 3 4 5 6 7 8 9\n", "cpu a 0 0 0 0 0 0 0\n"} {
		if _, err := parse([]byte(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}
