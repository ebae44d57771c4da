package results

import (
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/procstat"
)

// Begin returns a Run of this command on this machine, starting now. Link describes the packets'
// path ("veth, native XDP, copy mode", "memory"):
//
//	run := results.Begin("veth, native XDP, copy mode")
//	run.Points = append(run.Points, …)
//	err := run.Finish(path) // "" saves nothing
func Begin(link string) *Run {
	r := &Run{Command: CommandLine(os.Args), Began: time.Now().UTC().Truncate(time.Second), Version: version(),
		Machine: ThisMachine(link)}
	r.before, _ = procstat.Read() // on error the run has no Stolen
	return r
}

// Finish records the duration, and saves the run unless path is empty.
func (r *Run) Finish(path string) error {
	r.Seconds = time.Since(r.Began).Round(100 * time.Millisecond).Seconds()
	if now, err := procstat.Read(); err == nil && r.before.CPUs > 0 {
		used := now.Since(r.before)
		r.Stolen = math.Round(1000*used.ShareOf(used.Stolen)) / 1000
	}
	if path == "" {
		return nil
	}
	return r.Save(path)
}

// version is the version set by the linker, or the tree's, or the one in Go's build information.
func version() string {
	if status.Version != "" {
		return status.Version
	}
	if out, err := exec.Command("git", "describe", "--tags", "--always", "--dirty").Output(); err == nil {
		return strings.TrimSpace(string(out))
	}
	return status.ThisBuild().Version
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// CommandLine is args as typed in a shell. It removes the program's directory, and shortens files
// under the working directory to relative paths, so that no path of the machine is recorded.
func CommandLine(args []string) string {
	here, _ := os.Getwd()
	words := make([]string, len(args))
	for i, a := range args {
		switch {
		case i == 0:
			a = filepath.Base(a)
		case here != "" && here != "/":
			a = strings.ReplaceAll(a, here+"/", "")
		}
		if !plain.MatchString(a) {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words[i] = a
	}
	return strings.Join(words, " ")
}

// LoadAll reads several files, oldest run first.
func LoadAll(paths ...string) ([]*Run, error) {
	var runs []*Run
	for _, path := range paths {
		r, err := Load(path)
		if err != nil {
			return nil, err
		}
		runs = append(runs, r)
	}
	slices.SortStableFunc(runs, func(a, b *Run) int { return a.Began.Compare(b.Began) })
	return runs, nil
}

// Key identifies the figure of a point: points with equal keys are repetitions of the same figure.
func (p *Point) Key() string {
	return strings.Join([]string{p.Experiment, p.System, p.Conditions(), p.Metric}, "|")
}

// Conditions is Params in one line, "flows 1000, frame 64"; names in without are omitted.
func (p *Point) Conditions(without ...string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(p.Params)) {
		if !slices.Contains(without, name) {
			parts = append(parts, fmt.Sprintf("%s %s", name, p.Params[name]))
		}
	}
	return strings.Join(parts, ", ")
}
