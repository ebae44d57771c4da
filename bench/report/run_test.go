package report

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/bench/results"
)

// laboratory is a sluice-bench that executes its first argument.
func laboratory(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sluice-bench")
	const script = `#!/bin/sh
name=$1
for file; do :; done # the last argument
case $name in
pipeline) echo '{"command": "sluice-bench pipeline", "machine": {}, "points": [{"experiment": "pipeline", "samples": [1]}]}' > "$file" ;;
compare)  echo '{"command": "sluice-bench compare", "points": [{"samples": [1]}]}' > "$file"; echo 'a violation' >&2; exit 1 ;;
steps)     echo 'sluice-bench: steps: no C compiler' >&2; exit 1 ;;
esac
`
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRun(t *testing.T) {
	out := t.TempDir()
	// An earlier run's file must not pass for this run's.
	if err := (&results.Run{Command: "old"}).Save(filepath.Join(out, "steps.json")); err != nil {
		t.Fatal(err)
	}
	c := Config{Bench: laboratory(t), Set: "full", Only: []string{"pipeline", "compare", "steps", "updates"}, Out: out,
		Note: "short run", Stdout: io.Discard, Stderr: io.Discard}
	err := Run(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "compare, steps, updates") ||
		strings.Contains(err.Error(), "pipeline") {
		t.Errorf("error: %v", err)
	}
	for name, want := range map[string]struct {
		failed string
		points int
	}{
		"pipeline": {"", 1},
		"compare":  {"exit status 1: a violation", 1},
		"steps":    {"exit status 1: sluice-bench: steps: no C compiler", 0},
		"updates":  {"it succeeded, but saved no results", 0},
	} {
		r, err := results.Load(filepath.Join(out, name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if r.Name != name || r.Failed != want.failed || len(r.Points) != want.points || r.Machine.Notes != "short run" {
			t.Errorf("%s: %+v", name, r)
		}
		if !strings.HasPrefix(r.Command, "sluice-bench "+map[string]string{"steps": "steps --json "}[name]) {
			t.Errorf("%s: command %q", name, r.Command)
		}
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		name, set string
		names     []string
		err       string
	}{
		{"all", "full", nil, ""},
		{"quick", "quick", nil, ""},
		{"unknown name", "full", []string{"speed"}, `"speed"`},
		{"unknown set", "some", nil, `"some"`},
		{"not quick", "quick", []string{"steps"}, "none of steps"},
	} {
		list, arguments, err := choose(c.set, c.names)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v", c.name, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if len(arguments(e)) == 0 || e.About == "" {
				t.Errorf("%s: %s has no arguments or no question", c.name, e.Name)
			}
		}
		if all := len(Experiments()); c.set == "full" && len(list) != all || c.set == "quick" && (len(list) == 0 ||
			len(list) >= all) {
			t.Errorf("%s: %d experiments", c.name, len(list))
		}
	}
}

func TestAdopt(t *testing.T) {
	out, baselines := t.TempDir(), t.TempDir()
	write := func(dir, name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	every := func(string) bool { return true }
	if err := Adopt(baselines, out, out, known, every); err == nil || !strings.Contains(err.Error(),
		"make -C bench report") {
		t.Errorf("without results: %v", err)
	}
	write(baselines, "gone.json", "{}")
	write(out, "pipeline.json", `{"name": "pipeline"}`)
	write(out, goText, "BenchmarkX 1 1 ns/op\n")
	if err := Adopt(baselines, out, out, known, every); err == nil {
		t.Error("adopted without the machine's description")
	}
	if _, err := os.Stat(filepath.Join(baselines, "gone.json")); err != nil {
		t.Error("a baseline went although nothing replaced it")
	}
	write(out, goMachine, "{}")
	if err := Adopt(baselines, out, out, known, func(string) bool { return false }); err == nil {
		t.Error("adopted a result without a commit")
	}
	if _, err := os.Stat(filepath.Join(baselines, "gone.json")); err != nil {
		t.Error("a baseline was removed although its replacement was rejected")
	}
	if err := Adopt(baselines, out, out, known, every); err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(baselines)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); got != "go.machine.txt go.txt pipeline.json" {
		t.Errorf("baselines: %s", got)
	}
}

func TestCompare(t *testing.T) {
	old, now := t.TempDir(), t.TempDir()
	for dir, ns := range map[string]string{old: "10", now: "20"} {
		lines := "goos: linux\npkg: p\ncpu: " + ns + "\n" + strings.Repeat("BenchmarkX 100 "+ns+" ns/op\n", 6)
		machine := `{"cpu": "CPU ` + ns + `", "kernel": "6.18"}`
		for name, text := range map[string]string{goText: lines, goMachine: machine} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	var out strings.Builder
	if err := Compare(t.Context(), "../..", old, now, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"CPU 10", "CPU 20", "WARNING", "processor differ", "+100.00%"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if n := strings.Count(out.String(), "BenchmarkX") + strings.Count(out.String(), "\nX "); n != 1 ||
		strings.Contains(out.String(), "cpu:") {
		t.Errorf("%d lines of the benchmark: the processor's name split the table\n%s", n, out.String())
	}
	if err := Compare(t.Context(), "../..", t.TempDir(), now, &out); err == nil || !strings.Contains(err.Error(),
		"make -C bench baseline") {
		t.Errorf("without a baseline: %v", err)
	}
}
