package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/test/bed/pagetest"
	"sluice.dev/sluice/test/bed/stateless"
)

// TestResultsThatCannotBeWritten: a path that cannot be written is an error before anything is
// measured, and no file is created.
func TestResultsThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept.json")
	if err := os.WriteFile(kept, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, want string }{
		{filepath.Join(dir, "none", "a.json"), "there is no directory " + filepath.Join(dir, "none")},
		{filepath.Join(kept, "a.json"), "there is no directory " + kept},
		{dir, "is a directory"},
		{filepath.Join(dir, "a.json"), ""},
		{kept, ""},
		{"", ""},
	} {
		for _, name := range []string{"compare", "pipeline", "rfc2544", "stateful", "stateless", "updates"} {
			root := rootCommand()
			cmd, rest, err := root.Find([]string{name, "--json", c.path})
			if err == nil {
				err = cmd.ParseFlags(rest)
			}
			if err != nil {
				t.Fatal(err)
			}
			err = root.PersistentPreRunE(cmd, nil)
			if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s --json %s: %v, want %q", name, c.path, err, c.want)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "a.json")); err == nil {
		t.Error("a file was made")
	}
}

func TestStdoutClosedByReader(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if unread(w) {
		t.Error("a pipe with a reader")
	}
	r.Close()
	if !unread(w) {
		t.Error("a pipe without one")
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if unread(file) {
		t.Error("a file")
	}
}

func TestInterruptedExitMessage(t *testing.T) {
	running := t.Context()
	ended, cancel := context.WithCancel(running)
	cancel()
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want string
	}{
		{running, errors.New("no interface eth9"), "no interface eth9"},
		{ended, context.Canceled, "interrupted"},
		{ended, errors.New("interrupted"), "interrupted"},
		{ended, fmt.Errorf("trial 3: %w", context.Canceled), "interrupted: trial 3: context canceled"},
		{ended, errors.New("clang: signal: killed"), "interrupted: clang: signal: killed"},
	} {
		if got := explained(c.ctx, c.err); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestForwarderNeedsPermission: a forwarder that would take all packets of the machine's own
// interfaces needs a flag that permits it.
func TestForwarderNeedsPermission(t *testing.T) {
	root := rootCommand()
	const mac = "02:00:00:00:00:01"
	root.SetArgs([]string{"l2fwd", "--in", "lo", "--out", "lo", "--next-in", mac, "--next-out", mac})
	if err := root.ExecuteContext(t.Context()); !errors.Is(err, stateless.ErrNotYours) {
		t.Errorf("%v, want %v", err, stateless.ErrNotYours)
	}
}

// TestAdvisedCommandsExist: each command line of sluice-bench in a page or a message is valid.
func TestAdvisedCommandsExist(t *testing.T) { pagetest.Commands(t, "../..", rootCommand, 20) }
