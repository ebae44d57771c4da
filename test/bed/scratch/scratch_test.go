package scratch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestTemporary: a new directory, and the end of one whose process was killed, but of no other's.
func TestTemporary(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dead := exec.Command("/bin/true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{
		fmt.Sprintf("lab-%d-1", dead.Process.Pid): false, fmt.Sprintf("lab-%d-1", os.Getpid()): true,
		fmt.Sprintf("other-%d-1", dead.Process.Pid): true, "lab-1": true,
	}
	for name := range left {
		if err := os.MkdirAll(filepath.Join(os.TempDir(), name, "full"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := Temporary("lab-")
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		t.Errorf("%s: %v", dir, err)
	}
	for name, kept := range left {
		if _, err := os.Stat(filepath.Join(os.TempDir(), name)); (err == nil) != kept {
			t.Errorf("%s: %v, kept should be %v", name, err, kept)
		}
	}
}
