//go:build root

package machine

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// judged is a tester that notes what became of it.
type judged struct{ skipped, failed string }

func (*judged) Helper()          {}
func (j *judged) Skip(a ...any)  { j.skipped += fmt.Sprintln(a...) }
func (j *judged) Fatal(a ...any) { j.failed += fmt.Sprintln(a...) }

// TestNeed: a test is skipped by the name of what is missing, never where it must not be, and never
// where nothing is.
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
