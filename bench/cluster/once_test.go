package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// TestMakeOnce: one of several callers fills the directory, one that fails leaves none, and what a
// killed one left does not last.
func TestMakeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	failure := errors.New("no network")
	if err := makeOnce(t.Context(), dir, func(string) error { return failure }); !errors.Is(err, failure) {
		t.Errorf("error %v, want that of the caller", err)
	}
	if complete(dir) || complete(dir+".next") {
		t.Error("a caller that failed left a directory")
	}
	if err := os.MkdirAll(filepath.Join(dir+".next", "torn"), 0o755); err != nil {
		t.Fatal(err)
	}
	var filled atomic.Int32
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			err := makeOnce(t.Context(), dir, func(next string) error {
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
