package upstream

import (
	"flag"
	"testing"

	"sluice.dev/sluice/test/bed/pagetest"
)

var update = flag.Bool("update", false, "rewrite the tables of docs/upstream.md")

// TestTables: the tables of docs/upstream.md are those of the cases.
func TestTables(t *testing.T) {
	pagetest.Keep(t, "../../docs/upstream.md", mark, "", tables(), *update, "make -C test upstream-doc")
}

// Each case runs somewhere or has a reason why it does not, and is listed once.
func TestCases(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range cases {
		if seen[c.Name] {
			t.Errorf("%s is there twice", c.Name)
		}
		seen[c.Name] = true
		if (c.In == nil) == (c.Why == "") {
			t.Errorf("%s: it runs in an arrangement, or it says why not", c.Name)
		}
		if c.In == nil && (c.By != "" || c.Alone) {
			t.Errorf("%s does not run: nothing of it is counted", c.Name)
		}
	}
}
