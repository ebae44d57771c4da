package xdpprog

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// TestLockOfARemovedDirectory: each holder removes the directory before it releases the lock, and
// yet two never hold the lock at once.
func TestLockOfARemovedDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pins")
	var holders, turns atomic.Int32
	var group sync.WaitGroup
	for range 4 {
		group.Add(1)
		go func() {
			defer group.Done()
			for range 2000 {
				f, err := lockDir(dir)
				if errors.Is(err, ErrInUse) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				turns.Add(1)
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d hold the lock", n)
				}
				holders.Add(-1)
				if err := os.Remove(dir); err != nil { // only the holder of the lock may
					t.Error(err)
				}
				f.Close()
			}
		}()
	}
	group.Wait()
	if turns.Load() == 0 {
		t.Error("the lock was never held")
	}
}
