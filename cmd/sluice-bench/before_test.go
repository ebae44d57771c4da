package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/bench/paired"
	"sluice.dev/sluice/bench/results"
)

// TestPipelineBefore runs the program as a user does, with itself as the older build: in short
// turns, in whole runs for a scenario without turns, and against a build that has no turns.
func TestPipelineBefore(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "sluice-bench")
	build := func(to string, overlay ...string) {
		args := append([]string{"build", "-o", to}, overlay...)
		if out, err := exec.Command("go", append(args, ".")...).CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
	}
	build(program)
	mute := filepath.Join(dir, "mute") // like builds from before --before existed
	source, err := os.ReadFile("pipeline.go")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(source), "\tcommand.AddCommand(turnsCommand())\n", "\t_ = turnsCommand\n", 1)
	here, err := os.Getwd()
	if err != nil || text == string(source) {
		t.Fatalf("the command that an older build lacks was not found: %v", err)
	}
	overlay := fmt.Sprintf(`{"Replace":{%q:%q}}`, filepath.Join(here, "pipeline.go"), filepath.Join(dir, "pipeline.go"))
	for name, content := range map[string]string{"pipeline.go": text, "overlay.json": overlay} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	build(mute, "-overlay", filepath.Join(dir, "overlay.json"))
	for _, c := range []struct {
		name, before, scenario, how string
		ratios                      int // figures compared
	}{
		{"turns", dir, "steady", "both take turns of 40 chunks", 1},
		{"whole runs of a scenario", program, "size", "whole runs in others", 1},
		{"whole runs", mute, "steady", "has no shorter turns", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "run.json")
			out, err := exec.Command(program, "pipeline", "--before", c.before, "--scenario", c.scenario, "--flows",
				"1000",
				"--ipv6=false", "--repeat", fmt.Sprint(paired.FewestPairs), "--windows", "10", "--json",
				file).CombinedOutput()
			if err != nil || !strings.Contains(string(out), c.how) || !strings.Contains(string(out), "verdict of ") {
				t.Fatalf("%v, want %q:\n%s", err, c.how, out)
			}
			run, err := results.Load(file)
			if err != nil {
				t.Fatal(err)
			}
			found := map[string]int{}
			for _, p := range run.Points {
				if len(p.Samples) != paired.FewestPairs || p.Median() <= 0 {
					t.Errorf("%s of %s has samples %v", p.Metric, p.System, p.Samples)
				}
				kind := p.System
				if p.Unit == "ratio" {
					kind = "ratio"
					if p.Interval == nil || p.Params["to"] != paired.Before {
						t.Errorf("%+v has no interval", p)
					}
				}
				found[kind]++
			}
			if n := found["ratio"]; n < c.ratios || found["sluice"] != n || found[paired.Before] != n {
				t.Errorf("figures %v", found)
			}
		})
	}
}

// TestPipelineBeforeRefuses: invalid flags are errors in one message, before anything runs.
func TestPipelineBeforeRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"there is no such file":         {"--before", "/nonexistent"},
		"is no program of this project": {"--before", "main.go"},
		"without the reference in C":    {"--before", "/nonexistent", "--reference"},
		"profile one build at a time":   {"--before", "/nonexistent", "--profile", filepath.Join(t.TempDir(), "p")},
		"--fail-slower is about":        {"--fail-slower"},
	} {
		root := rootCommand()
		root.SetArgs(append([]string{"pipeline"}, args...))
		if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}
