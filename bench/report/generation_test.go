package report

import (
	"os/exec"
	"strings"
	"testing"

	"sluice.dev/sluice/bench/results"
)

func TestMixedGenerationsAreRefused(t *testing.T) {
	machine := results.Machine{CPU: "A", Kernel: "6.18"}
	run := func(name, version, cpu string) *results.Run {
		m := machine
		m.CPU = cpu
		return &results.Run{Name: name, Version: version, Machine: m}
	}
	for _, c := range []struct {
		name string
		runs []*results.Run
		err  string // part of it; empty if there is none
	}{
		{"one machine, two commits", []*results.Run{run("pipeline", "a", "A"), run("compare", "b", "A")}, ""},
		{"two machines", []*results.Run{run("pipeline", "a", "A"), run("compare", "a", "B")},
			"compare: from another machine than pipeline: processor differ"},
		{"twice", []*results.Run{run("pipeline", "a", "A"), run("pipeline", "b", "A")}, "pipeline: two runs"},
		{"no experiment", []*results.Run{run("pipeline-shared", "a", "A")}, `"pipeline-shared" is no experiment`},
		{"lost commit", []*results.Run{run("pipeline", "c", "A")}, `commit "c" is not in the history`},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := OneGeneration(c.runs, known, func(v string) bool { return v == "a" || v == "b" })
			switch {
			case c.err == "" && err != nil:
				t.Error(err)
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}

// TestGenerationsAreOfDifferentMachines: two columns have two headings.
func TestGenerationsAreOfDifferentMachines(t *testing.T) {
	run := func(cpu string) []*results.Run {
		return []*results.Run{{Name: "pipeline", Machine: results.Machine{CPU: cpu}}}
	}
	every := func(string) bool { return true }
	gens, err := generationsOf([][]*results.Run{run("A"), run("AMD EPYC (family 25, model 1)")}, known, every)
	if err != nil || len(gens) != 2 || gens[0].title != "A" || gens[1].title != "Zen 3" {
		t.Errorf("%v, %v", gens, err)
	}
	if _, err := generationsOf([][]*results.Run{run("A"), run("A")}, known, every); err == nil {
		t.Error("two sets of one machine: no error")
	}
}

func TestHistory(t *testing.T) {
	tree := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		const author = "user.name=a"
		args = append([]string{"-C", tree, "-c", author, "-c", "user.email=a@example.org", "-c",
			"commit.gpgsign=false"},
			args...)
		out, err := exec.Command("git", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "first")
	first := git("describe", "--always")
	git("commit", "-q", "--allow-empty", "-m", "second")
	second := git("describe", "--always")
	git("reset", "-q", "--hard", first)
	in := History(tree)
	for version, want := range map[string]bool{
		first: true, second: false, first + "-dirty": false, "0123456": false, "unknown": false, "": false,
		"--help": false,
	} {
		if got := in(version); got != want {
			t.Errorf("version %q is in the history: %t", version, got)
		}
	}
}
