package report

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/progress"
)

// Config selects the experiments to run, and the directory of their results.
type Config struct {
	Bench string   // path of sluice-bench
	Set   string   // quick or full
	Only  []string // names; nil: all of the set
	Out   string   // directory: NAME.json and NAME.log of each
	// Note is recorded in every run, for example "short run".
	Note string
	// Stdout and Stderr receive the output of the experiments.
	Stdout, Stderr io.Writer
}

// Run runs the experiments one after another. It records a failure in the experiment's file and
// continues; the error at the end names the experiments that failed.
func Run(ctx context.Context, c Config) error {
	list, arguments, err := choose(c.Set, c.Only)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return fmt.Errorf("directory of the results: %w", err)
	}
	var minutes []float64
	for _, e := range list {
		minutes = append(minutes, e.Minutes)
	}
	p := progress.Start(c.Stderr, len(list))
	if c.Set == "full" {
		p.Weigh(minutes...)
	}
	var failed []string
	for _, e := range list {
		p.Step(e.Name + ": " + e.About)
		r, err := c.one(ctx, e, arguments(e))
		if err != nil {
			return err
		}
		if r.Failed != "" {
			failed = append(failed, e.Name)
			fmt.Fprintf(c.Stderr, "%s: %s\n", e.Name, r.Failed)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted in experiment %s; results of earlier experiments are in %s", e.Name, c.Out)
		}
	}
	p.Done()
	if failed != nil {
		return fmt.Errorf("failed: %s; their output is in %s/NAME.log", strings.Join(failed, ", "), c.Out)
	}
	return nil
}

// one runs an experiment. It writes a file even if the experiment fails.
func (c *Config) one(ctx context.Context, e Experiment, args []string) (*results.Run, error) {
	path := filepath.Join(c.Out, e.Name+".json")
	// An older file must not pass for the result of this run.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("experiment %s: %w", e.Name, err)
	}
	log, err := os.Create(filepath.Join(c.Out, e.Name+".log"))
	if err != nil {
		return nil, fmt.Errorf("experiment %s: %w", e.Name, err)
	}
	defer log.Close()
	args = append(slices.Clone(args), "--json", path)
	own := results.Begin("")
	own.Command = results.CommandLine(append([]string{"sluice-bench"}, args...))
	var last lastLine
	cmd := exec.CommandContext(ctx, c.Bench, args...)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(log, c.Stdout), io.MultiWriter(log, c.Stderr, &last)
	// The experiment removes its network itself.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	ran := cmd.Run()
	r, err := results.Load(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if r = own; ran == nil {
			r.Failed = "it succeeded, but saved no results"
		}
		r.Seconds = time.Since(own.Began).Round(100 * time.Millisecond).Seconds()
	case err != nil:
		return nil, fmt.Errorf("experiment %s: %w", e.Name, err)
	}
	if ran != nil {
		r.Failed = ran.Error()
		if text := last.String(); text != "" {
			r.Failed += ": " + text
		}
	}
	r.Name = e.Name
	if r.Machine.Notes == "" {
		r.Machine.Notes = c.Note
	} else if c.Note != "" {
		r.Machine.Notes += "; " + c.Note
	}
	return r, r.Save(path)
}

// lastLine keeps the end of the written output.
type lastLine struct{ tail []byte }

func (l *lastLine) Write(b []byte) (int, error) {
	l.tail = append(l.tail, b...)
	l.tail = slices.Clone(l.tail[max(0, len(l.tail)-1000):])
	return len(b), nil
}

// String is the last line that is not empty.
func (l *lastLine) String() string {
	text := bytes.TrimSpace(l.tail)
	return string(bytes.TrimSpace(text[bytes.LastIndexByte(text, '\n')+1:]))
}
