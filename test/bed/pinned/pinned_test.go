package pinned

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
)

func TestJudge(t *testing.T) {
	const was = "version 3\n\na\n"
	for _, tt := range []struct {
		name, was, version, form string
		update, write            bool
		problem                  string
	}{
		{name: "the same", was: was, version: "3", form: "a\n"},
		{name: "the same, written anew", was: was, version: "3", form: "a\n", update: true},
		{name: "another form", was: was, version: "3", form: "b\n", problem: "give it a new version"},
		{name: "another form is not written", was: was, version: "3", form: "b\n", update: true,
			problem: "give it a new version"},
		{name: "another version", was: was, version: "4", form: "b\n", problem: "it is not of version 4"},
		{name: "another version is written", was: was, version: "4", form: "b\n", update: true, write: true},
		{name: "a version with the same prefix", was: "version 31\n\na\n", version: "3", form: "a\n",
			problem: "it is not of version 3"},
		{name: "no file", version: "3", form: "a\n", problem: "it is not of version 3"},
		{name: "the first file", version: "3", form: "a\n", update: true, write: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			write, problem := judge(tt.was, tt.version, tt.form, tt.update)
			if write != tt.write || (problem == "") != (tt.problem == "") || !strings.Contains(problem, tt.problem) {
				t.Errorf("%v, %q, want %v, %q", write, problem, tt.write, tt.problem)
			}
		})
	}
}

func TestLayout(t *testing.T) {
	type inner struct{ A, B uint16 }
	type record struct {
		First inner
		N     atomic.Uint32
		Pairs [2]inner
	}
	const want = `pinned.record, 16 bytes
     0 First pinned.inner
     0 First.A uint16
     2 First.B uint16
     4 N atomic.Uint32
     8 Pairs [2]pinned.inner
     8 Pairs.A uint16
    10 Pairs.B uint16
`
	if got := Layout(record{}); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestFormListsFields(t *testing.T) {
	type inner struct {
		At netip.Addr `json:"at"`
	}
	type view struct {
		*inner
		Names  []string           `json:"names,omitempty"`
		Counts map[string][]inner `json:"counts"`
		Hidden int                `json:"-"`
	}
	const want = "view[].at netip.Addr\nview[].names?[] string\nview[].counts{}[].at netip.Addr\n"
	if got := Form("view", []view{}); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
