//go:build root

package autogroup

import (
	"os"
	"strings"
	"testing"
)

// TestSetNice: the session has the first nice value, and then its former one again.
func TestSetNice(t *testing.T) {
	s, err := Open()
	if err != nil {
		t.Skip("this kernel lacks CONFIG_SCHED_AUTOGROUP, or does not use it here:", err)
	}
	defer s.Close()
	before, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetNice(-20); err != nil {
		t.Fatal(err)
	}
	if now, err := os.ReadFile(own); err != nil || !strings.HasSuffix(string(now), " nice -20\n") {
		t.Errorf("the session meanwhile: %q, %v", now, err)
	}
	if err := s.SetNice(s.Usual()); err != nil {
		t.Fatal(err)
	}
	if now, err := os.ReadFile(own); err != nil || string(now) != string(before) {
		t.Errorf("the session afterwards: %q, %v, before %q", now, err, before)
	}
}

func TestParseAutogroup(t *testing.T) {
	for _, c := range []struct {
		text string
		want int
		ok   bool
	}{
		{"/autogroup-897 nice 0\n", 0, true}, {"/autogroup-1 nice -20\n", -20, true}, {"/ nice 5", 5, true},
		{"", 0, false}, {"/autogroup-897\n", 0, false}, {"/autogroup-897 nice \n", 0, false},
	} {
		got, err := parse(c.text)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%q: %d, %v, want %d", c.text, got, err, c.want)
		}
	}
}

func TestTopCgroup(t *testing.T) {
	for text, want := range map[string]string{
		"0::/\n": "", "": "", "4:cpu,cpuacct:/a\n": "",
		"0::/user.slice/user-0.slice\n": "user.slice", "4:cpuset:/\n0::/a\n": "a",
	} {
		if got := topCgroup(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
