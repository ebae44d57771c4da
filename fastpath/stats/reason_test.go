package stats

import (
	"os"
	"strings"
	"testing"
)

// TestReasonsAreDocumented: every reason has a name of its own, and an operator
// finds it in the documentation.
func TestReasonsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/counters.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for r := None; r < NumDropReasons; r++ {
		name := r.String()
		if name == "" || seen[name] {
			t.Errorf("reason %d has the name %q, which is empty or taken", r, name)
		}
		seen[name] = true
		if r != None && !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("docs/counters.md does not say what %s means", name)
		}
	}
}
