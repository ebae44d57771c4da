package scratch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestOnce: one of several callers fills the directory, one that fails leaves none, and what a
// killed one left does not last.
func TestOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	failure := errors.New("no network")
	if err := Once(t.Context(), dir, func(string) error { return failure }); !errors.Is(err, failure) {
		t.Errorf("error %v, want that of the caller", err)
	}
	for _, left := range []string{dir, dir + ".next"} {
		if _, err := os.Stat(left); err == nil {
			t.Errorf("a caller that failed left %s", left)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir+".next", "torn"), 0o755); err != nil {
		t.Fatal(err)
	}
	var filled atomic.Int32
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			err := Once(t.Context(), dir, func(next string) error {
				filled.Add(1)
				return os.WriteFile(filepath.Join(next, "program"), nil, 0o755)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "program" || filled.Load() != 1 {
		t.Errorf("filled %d times, holds %v; error %v", filled.Load(), entries, err)
	}
}

// TestLock: one holder at a time, who may give it back, or be waited for in vain.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	if _, err := Lock(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("locked twice: %v", err)
	}
	unlock()
	unlock, err = Lock(t.Context(), path)
	if err != nil {
		t.Fatalf("not to be had after it was given back: %v", err)
	}
	unlock()
}
