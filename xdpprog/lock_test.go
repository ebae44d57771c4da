package xdpprog

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// TestSecondInstance: who comes second changes nothing of the first's, and has its
// turn when the first is gone, whether that left its pins or removed them.
func TestSecondInstance(t *testing.T) {
	isolate(t)
	nic, _ := veth(t, "nic", "peer")
	c := Config{PinDir: pinDir(t)}
	first := load(t, c)
	_, err := first.Reconcile(fixture())
	must(t, err)
	p := attach(t, first, nic, "nic", Auto)
	foreignLayout := filepath.Join(c.PinDir, mapPrefix+"0")
	must(t, os.Mkdir(foreignLayout, 0o700))

	refused := func() {
		t.Helper()
		if _, err := Load(c); !errors.Is(err, ErrInUse) {
			t.Fatalf("a second Load of the same pin directory: %v", err)
		}
	}
	refused()
	if _, err := os.Stat(foreignLayout); err != nil {
		t.Errorf("the second tidied up: %v", err)
	}
	must(t, p.Check())
	if n, err := first.Reconcile(fixture()); err != nil || n != 0 {
		t.Errorf("%d rules were changed, %v", n, err)
	}
	for _, detach := range []bool{false, true} {
		must(t, first.Close(detach))
		first = load(t, c)
		refused()
	}
	must(t, first.Close(true))
	if _, err := os.Stat(c.PinDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pin directory is still there: %v", err)
	}
}

// TestLockOfARemovedDirectory: everyone removes the directory before letting go of
// the lock, and still no two have it.
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
				if err := os.Remove(dir); err != nil { // only who has the lock may
					t.Error(err)
				}
				f.Close()
			}
		}()
	}
	group.Wait()
	if turns.Load() == 0 {
		t.Error("nobody ever had the lock")
	}
}
