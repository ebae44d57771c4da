package mapped

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"sluice.dev/sluice/internal/trusted"
)

func mustOpen(t *testing.T, path string, size int64) (*File, string) {
	t.Helper()
	f, why, err := Open(path, size)
	if err != nil {
		t.Fatal(err)
	}
	return f, why
}

func TestFileKeepsMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table")
	f, why := mustOpen(t, path, 8192)
	if why != "new file" || len(f.Mem) != 8192 {
		t.Errorf("a new file: %d bytes, why %q", len(f.Mem), why)
	}
	f.Mem[5000] = 7
	if _, _, err := Open(path, 8192); !errors.Is(err, ErrInUse) {
		t.Errorf("opened twice: %v, want ErrInUse", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f, why = mustOpen(t, path, 8192)
	if why != "" || f.Mem[5000] != 7 {
		t.Errorf("opened again: why %q, the byte is %d", why, f.Mem[5000])
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f, why = mustOpen(t, path, 12288)
	if why == "" || len(f.Mem) != 12288 || f.Mem[5000] != 0 {
		t.Errorf("opened with another size: %d bytes, why %q, the byte is %d", len(f.Mem), why, f.Mem[5000])
	}
	if err := f.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Remove: %v", err)
	}
	if _, _, err := Open(filepath.Join(path, "missing"), 4096); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// The file is deleted, and perhaps made again, after it was opened and before it is locked: then
// the lock is on a file without a name.
func TestLockOfDeletedFile(t *testing.T) {
	for _, c := range []struct {
		name      string
		meanwhile func(path string) error
		current   bool
	}{
		{"nothing happens", func(string) error { return nil }, true},
		{"deleted", os.Remove, false},
		{"deleted and made again", func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, nil, 0o600))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "table")
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := c.meanwhile(path); err != nil {
				t.Fatal(err)
			}
			if current, err := lock(f, path); current != c.current || err != nil {
				t.Errorf("lock: %v %v, want %v", current, err, c.current)
			}
		})
	}
}

// Several instances open and remove one file at once: two of them never have it at the same time.
func TestFileOpenedAndRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table")
	const rounds = 100
	var holders, opened atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range rounds {
				f, _, err := Open(path, 4096)
				if errors.Is(err, ErrInUse) {
					continue
				} else if err != nil {
					t.Error(err)
					return
				}
				opened.Add(1)
				if holders.Add(1) != 1 {
					t.Error("two have the file")
				}
				named, err := os.Stat(path)
				ours, err2 := f.file.Stat()
				if err != nil || err2 != nil || !os.SameFile(named, ours) {
					t.Errorf("the path does not name the file that was opened: %v %v", err, err2)
				}
				holders.Add(-1)
				if err := f.Remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("opened %d times", opened.Load())
}

// TestOthersFile: a link, or a file that others may write, is not mapped, and the target of a link
// keeps its content.
func TestOthersFile(t *testing.T) {
	dir := t.TempDir()
	path, victim := filepath.Join(dir, "table"), filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, path); err != nil {
		t.Fatal(err)
	}
	var refusal *trusted.Refusal
	if _, _, err := Open(path, 8192); !errors.As(err, &refusal) {
		t.Errorf("a link: %v", err)
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "content" {
		t.Errorf("the target of the link now has %d bytes, %v", len(text), err)
	}
	if err := errors.Join(os.Rename(victim, path), os.Chmod(path, 0o660)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(path, 8192); !errors.As(err, &refusal) {
		t.Errorf("a file that its group may write: %v", err)
	}
}
