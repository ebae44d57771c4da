package upstream

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the tables of docs/upstream.md")

// TestTables: the tables of docs/upstream.md are those of the cases.
func TestTables(t *testing.T) {
	const path = "../../docs/upstream.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, got, found := strings.Cut(string(text), mark)
	if !found {
		t.Fatalf("%s has no line %q", path, mark)
	}
	want := tables()
	if got == want {
		return
	}
	if !*update {
		t.Fatalf("%s is not what the cases say: make upstream-doc", path)
	}
	if err := os.WriteFile(path, []byte(head+mark+want), 0o644); err != nil {
		t.Fatal(err)
	}
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
