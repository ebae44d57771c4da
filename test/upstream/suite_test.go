package upstream

import (
	"slices"
	"strings"
	"testing"
)

const testedName = "Services should be able to create a functioning NodePort service [Conformance]"

// A report has the outcome of the case, and what failed around it.
func TestOutcome(t *testing.T) {
	const head = `<testsuites><testsuite name="Kubernetes e2e suite">`
	const before = `<testcase name="[SynchronizedBeforeSuite]" status="passed"></testcase>`
	const tail = `</testsuite></testsuites>`
	one := func(inner string) string {
		return head + before + `<testcase name="[It] [sig-network] ` + testedName + `">` + inner + `</testcase>` + tail
	}
	for _, tc := range []struct {
		name, report    string
		passed, skipped bool
		message, err    string
	}{
		{"passed", one(""), true, false, "", ""},
		{"failed", one(`<failure message="not reachable">stack</failure>`), false, false, "not reachable", ""},
		{"failed without a word", one(`<failure>  the text  </failure>`), false, false, "the text", ""},
		{"timed out", one(`<error message="interrupted"></error>`), false, false, "interrupted", ""},
		{"skipped", one(`<skipped message="needs two nodes"></skipped>`), false, true, "needs two nodes", ""},
		{"suite failed", head +
			`<testcase name="[SynchronizedBeforeSuite]"><failure message="no nodes"></failure></testcase>` + tail,
			false, false, "no nodes", ""},
		{"another case", head + before + `<testcase name="[It] [sig-network] Services should sleep"></testcase>` + tail,
			false, false, "", "has no case"},
		{"no XML", "<testsuites>", false, false, "", "EOF"},
	} {
		var o Outcome
		err := o.parse([]byte(tc.report), testedName)
		if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: error %v, want %q", tc.name, err, tc.err)
		}
		if o.Passed != tc.passed || o.Skipped != tc.skipped || o.Message != tc.message {
			t.Errorf("%s: passed %v, skipped %v, %q", tc.name, o.Passed, o.Skipped, o.Message)
		}
	}
}

func TestListed(t *testing.T) {
	const text = "The following spec names can be used with 'ginkgo run --focus/skip':\n" +
		"    k8s.io/kubernetes/test/e2e/network/service.go:1287: [sig-network] Services should serve [Conformance]\n" +
		"    k8s.io/kubernetes/test/e2e/apps/job.go:12: [sig-apps] Job should end\n"
	if got, want := listed(text), []string{"Services should serve [Conformance]"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A release with a case more or less than the table is found out.
func TestCompare(t *testing.T) {
	var names []string
	for _, c := range cases {
		names = append(names, c.Name)
	}
	for _, g := range groups {
		names = append(names, g+"should do something else")
	}
	if problems := compare(names); problems != nil {
		t.Fatalf("of the table's own names: %q", problems)
	}
	for _, tc := range []struct {
		name  string
		names []string
		want  string
	}{
		{"a new case", append(slices.Clone(names), "Services should fly"),
			`the table has no case "Services should fly"`},
		{"a case less", names[1:], `the release has no case "` + names[0] + `"`},
		{"a group less", names[:len(names)-1], "the release has no case that begins with"},
	} {
		if problems := compare(tc.names); len(problems) != 1 || !strings.HasPrefix(problems[0], tc.want) {
			t.Errorf("%s: %q", tc.name, problems)
		}
	}
}

// A case counts by the flows of its own Services, or by the reason that it names.
func TestCounted(t *testing.T) {
	flows, reason := &Case{Name: "flows"}, &Case{Name: "reason", By: "no_endpoints"}
	for _, tc := range []struct {
		name string
		c    *Case
		r    Result
		want bool
	}{
		{"nothing", flows, Result{}, false},
		{"flows", flows, Result{Traffic: Traffic{Flows: 1, ToBackend: 3}}, true},
		{"a flow and no packet", flows, Result{Traffic: Traffic{Flows: 1}}, false},
		{"no flow of its Services, alone", flows, Result{Created: 2, Alone: true}, true},
		{"flows of others", flows, Result{Created: 2}, false},
		{"the reason, not alone", reason, Result{Drops: map[string]uint64{"no_endpoints": 5}}, false},
		{"drops of others", flows, Result{Drops: map[string]uint64{"no_endpoints": 5}}, false},
		{"the reason", reason, Result{Drops: map[string]uint64{"no_endpoints": 5}, Alone: true}, true},
		{"another reason", reason, Result{Drops: map[string]uint64{"no_flow": 5},
			Traffic: Traffic{Flows: 1, ToBackend: 1}, Alone: true}, false},
	} {
		if got := tc.r.Counted(tc.c); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
	if d := risen(map[string]uint64{"a": 1, "b": 2}, map[string]uint64{"a": 1, "b": 5, "c": 1}); len(d) != 2 ||
		d["b"] != 3 || d["c"] != 1 {
		t.Errorf("risen: %v", d)
	}
}
