package reason

import (
	"os"
	"strings"
	"testing"
)

// TestReasonsAreDocumented: every reason has a unique name, which docs/counters.md describes.
func TestReasonsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/counters.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for r := None; r < Count; r++ {
		name := r.String()
		if name == "" || seen[name] {
			t.Errorf("reason %d has the name %q, which is empty or taken", r, name)
		}
		seen[name] = true
		if r != None && !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("docs/counters.md does not describe %s", name)
		}
	}
}
