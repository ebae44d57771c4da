package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestUnread(t *testing.T) {
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

func TestInterruptedIsSaid(t *testing.T) {
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
