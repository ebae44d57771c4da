package machine

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestFactor(t *testing.T) {
	for _, c := range []struct {
		text string
		want float64 // 0 is refused
	}{
		{"", 1}, {"1", 1}, {"2.5", 2.5}, {"100", 100},
		{"0", 0}, {"0.5", 0}, {"101", 0}, {"-3", 0}, {"NaN", 0}, {"ten", 0},
	} {
		got, err := parseFactor(c.text)
		if got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%q: %v, %v, want %v", c.text, got, err, c.want)
		}
		if err != nil && !strings.Contains(err.Error(), slowerVariable) {
			t.Errorf("%q: the message does not name the variable: %v", c.text, err)
		}
	}
}

// judged is a tester that notes what became of it.
type judged struct{ skipped, failed string }

func (*judged) Helper()          {}
func (j *judged) Skip(a ...any)  { j.skipped += fmt.Sprintln(a...) }
func (j *judged) Fatal(a ...any) { j.failed += fmt.Sprintln(a...) }

// TestNeed: a test is skipped by the name of what is missing, never where it must not be, and never where nothing is.
func TestNeed(t *testing.T) {
	has := Feature{"hats", "hat", func() error { return nil }}
	lacks := Feature{"coats", "coat", func() error { return errors.New("not today") }}
	for _, c := range []struct {
		name, noSkip    string
		features        []Feature
		skipped, failed bool
	}{
		{name: "nothing"},
		{name: "has it", features: []Feature{has}},
		{name: "has it, no skipping", noSkip: "1", features: []Feature{has}},
		{name: "lacks it", features: []Feature{has, lacks}, skipped: true},
		{name: "lacks it, no skipping", noSkip: "1", features: []Feature{has, lacks}, failed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(noSkipVariable, c.noSkip)
			var j judged
			Need(&j, c.features...)
			for text, want := range map[string]bool{j.skipped: c.skipped, j.failed: c.failed} {
				if want && !strings.Contains(text, "this kernel lacks coats (module coat): not today") {
					t.Errorf("skipped %q, failed %q", j.skipped, j.failed)
				}
			}
			if (j.skipped != "") != c.skipped || (j.failed != "") != c.failed {
				t.Errorf("skipped %q, failed %q", j.skipped, j.failed)
			}
		})
	}
}

// TestFeatures: what is said of each feature is true of what a user would try, or names the reason. It needs root.
func TestFeatures(t *testing.T) {
	for _, f := range []Feature{SCTP, Netem, VLAN, Pktgen} {
		err := f.Missing()
		t.Logf("%s: %v", f.Name, err)
		if err != nil && (!strings.Contains(err.Error(), f.Name) || !strings.Contains(err.Error(), f.Module)) {
			t.Errorf("%s: %v", f.Name, err)
		}
	}
}
