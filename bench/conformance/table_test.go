package conformance

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the tables of docs/conformance.md")

// TestTables: the tables of docs/conformance.md are those of the cases and of the
// listed differences.
func TestTables(t *testing.T) {
	const path, mark = "../../docs/conformance.md", "<!-- Written by make conformance-doc. -->\n"
	known, err := rows(document)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, got, found := strings.Cut(string(text), mark)
	if !found {
		t.Fatalf("%s has no line %q", path, mark)
	}
	want := tables(all(), append(known, prose...))
	if strings.Contains(want, "no such probe") {
		t.Error("a listed difference names no probe")
	}
	if got == want {
		return
	}
	if !*update {
		t.Fatalf("%s is not what the cases say: make conformance-doc", path)
	}
	if err := os.WriteFile(path, []byte(head+mark+want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Outcomes are compared as text, so the text must say everything.
func TestOutcome(t *testing.T) {
	gateway := func(a string) bool { return a == "10.72.0.1" }
	from := func(backend, source string) answer {
		return answer{backend: backend, source: source, client: "10.71.0.10"}
	}
	for _, tc := range []struct {
		name    string
		answers []answer
		sticky  bool
		want    string
	}{
		{"two backends", []answer{from("b1", "10.72.0.1"), from("b0", "10.72.0.1"), from("b1", "10.72.0.1")}, false, "b0 b1 from gateway"},
		{"the client's address", []answer{from("b0", "10.71.0.10")}, false, "b0 from client"},
		{"both addresses", []answer{from("b0", "10.71.0.10"), from("b0", "10.72.0.1")}, false, "b0 from client, gateway"},
		{"somebody else's", []answer{from("b0", "192.0.2.1")}, false, "b0 from 192.0.2.1"},
		{"sticks", []answer{from("b0", "10.72.0.1"), from("b0", "10.72.0.1")}, true, "one from gateway"},
		{"does not stick", []answer{from("b0", "10.72.0.1"), from("b1", "10.72.0.1"), from("b0", "10.72.0.1")}, true, "several from gateway"},
		{"refused", []answer{{verdict: reject}, {verdict: reject}}, false, "reject"},
		{"some of both", []answer{from("b0", "10.71.0.10"), {verdict: drop}, {verdict: reject}}, false, "b0 from client; drop; reject"},
	} {
		if got := outcome(tc.answers, tc.sticky, gateway); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
