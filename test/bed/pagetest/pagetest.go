// Package pagetest holds pages of documentation to what programs write into them.
package pagetest

import (
	"os"
	"strings"
	"testing"
)

// Keep fails the test unless the text of a page between the lines begin and end is want; with an
// end of "" the text goes on to the end of the page. With update it writes want there. how is the
// command that updates the page, for the message.
func Keep(t testing.TB, path, begin, end, want string, update bool, how string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, got, found := strings.Cut(string(text), begin)
	if !found {
		t.Fatalf("%s has no line %q", path, begin)
	}
	tail := ""
	if end != "" {
		if got, tail, found = strings.Cut(got, end); !found {
			t.Fatalf("%s has no line %q", path, end)
		}
	}
	if got == want {
		return
	}
	if !update {
		t.Fatalf("%s is not what is written into it: %s", path, how)
	}
	if err := os.WriteFile(path, []byte(head+begin+want+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}
