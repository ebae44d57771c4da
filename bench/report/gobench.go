package report

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/progress"
)

// hot are the benchmarks of code that every packet passes: package and regular expression. Other
// benchmarks are not per packet, or take too long for their information.
var hot = []struct{ path, run string }{
	{"./nat/header", "."},
	{"./nat/checksum", "."},
	{"./nat", "Translate|DecrementTTL"},
	// A million flows take seconds to make for each sample; Step and the pipeline experiment have
	// them.
	{"./flowtable", "Lookup/v6/flows=1000(00)?$|Create/^1000(00)?$|Observe"},
	{"./fastpath/services", "Frontend|Choose/(maglev|rr|lc)$"},
	{"./fastpath", "Step"},
}

// Files in the baselines' directory beside the experiments' NAME.json.
const (
	goText    = "go.txt"         // output of go test, read by benchstat
	goMachine = "go.machine.txt" // a results.Machine in JSON; its name must not match bench/baselines/*.json
)

// Benchmarks is a run of Go benchmarks.
type Benchmarks struct {
	Dir       string // of the module
	Count     int    // samples; benchstat wants 6 or more
	BenchTime string // of go test
	Out       string // directory of go.txt
	// Progress gets a line for each package, Stdout the output of go test.
	Stdout, Progress io.Writer
}

// Run runs the benchmarks and saves their output, with the machine's description.
func (b *Benchmarks) Run(ctx context.Context) error {
	if err := os.MkdirAll(b.Out, 0o755); err != nil {
		return fmt.Errorf("benchmarks: %w", err)
	}
	var text bytes.Buffer
	p := progress.Start(b.Progress, len(hot))
	for _, h := range hot {
		p.Step("Go benchmarks of " + h.path)
		args := []string{
			"test", "-tags", "root", "-run", "^$", "-bench", h.run, "-benchtime", b.BenchTime, "-count",
			fmt.Sprint(b.Count), "-timeout", "60m", h.path,
		}
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
		cmd.WaitDelay = 10 * time.Second
		cmd.Dir, cmd.Stdout, cmd.Stderr = b.Dir, io.MultiWriter(&text, b.Stdout), b.Progress
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
		}
	}
	p.Done()
	if !benchmarkLine.Match(text.Bytes()) {
		return errors.New("benchmarks: go test ran none")
	}
	machine, err := json.MarshalIndent(results.ThisMachine(""), "", "\t")
	if err != nil {
		return fmt.Errorf("benchmarks: %w", err)
	}
	err = errors.Join(os.WriteFile(filepath.Join(b.Out, goText), text.Bytes(), 0o644),
		os.WriteFile(filepath.Join(b.Out, goMachine), append(machine, '\n'), 0o644))
	if err != nil {
		return fmt.Errorf("benchmarks: %w", err)
	}
	return nil
}

var benchmarkLine = regexp.MustCompile(`(?m)^Benchmark\S+\s+\d+\s`)

// Compare prints both machines, warns if they differ, and runs benchstat on the benchmarks of two
// directories. It gives no verdict, because the noise depends on the machine.
func Compare(ctx context.Context, dir, baseline, now string, out io.Writer) error {
	var machines [2]results.Machine
	for i, d := range [...]string{baseline, now} {
		text, err := os.ReadFile(filepath.Join(d, goMachine))
		if err == nil {
			err = json.Unmarshal(text, &machines[i])
		}
		if err != nil {
			return fmt.Errorf("machine of the benchmarks in %s: %w; `make -C bench baseline` writes a baseline", d, err)
		}
		fmt.Fprintf(out, "%s: %s\n", d, machines[i].Line())
	}
	if differ := machines[0].Differ(machines[1]); differ != nil {
		fmt.Fprintf(out,
			"WARNING: these are different machines: %s differ. The comparison is of machines as much as of code.\n",
			strings.Join(differ, ", "))
	}
	// The machines above name the processor: it must not split the tables.
	args := []string{"tool", "benchstat", "-table", "pkg", "baseline=" + filepath.Join(baseline, goText),
		"now=" + filepath.Join(now, goText)}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// Adopt replaces the baselines with the Go benchmarks of goDir and the experiments' results. It
// removes baselines of experiments without results. It returns an error if the results are not one
// generation.
func Adopt(baselines, goDir, experiments string, known []Experiment, inHistory func(version string) bool) error {
	found, err := filepath.Glob(filepath.Join(experiments, "*.json"))
	if err != nil || len(found) == 0 {
		return errors.Join(err, fmt.Errorf("no results in %s: run `make -C bench report` first", experiments))
	}
	runs, err := results.LoadAll(found...)
	if err != nil {
		return err
	}
	if err := OneGeneration(runs, known, inHistory); err != nil {
		return fmt.Errorf("baseline: %w", err)
	}
	files := append(found, filepath.Join(goDir, goText), filepath.Join(goDir, goMachine))
	contents := make(map[string][]byte)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return fmt.Errorf("baseline: %w", err)
		}
		contents[filepath.Base(f)] = text
	}
	if err := os.MkdirAll(baselines, 0o755); err != nil {
		return fmt.Errorf("baseline: %w", err)
	}
	old, _ := filepath.Glob(filepath.Join(baselines, "*.json"))
	for _, f := range old {
		err = errors.Join(err, os.Remove(f))
	}
	for name, text := range contents {
		err = errors.Join(err, os.WriteFile(filepath.Join(baselines, name), text, 0o644))
	}
	if err != nil {
		return fmt.Errorf("baseline: %w", err)
	}
	return nil
}
