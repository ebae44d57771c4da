//go:build root

package steering

import (
	"os"
	"path/filepath"
	"testing"

	"sluice.dev/sluice/xdpprog"
)

// TestMount: a directory that was there stays, one of ours goes, also when a successor of the
// daemon that made it takes it away.
func TestMount(t *testing.T) {
	for _, before := range []bool{false, true} {
		dir, state := filepath.Join(t.TempDir(), "bpf"), t.TempDir()
		if before {
			must(t, os.Mkdir(dir, 0o700))
		}
		var m *Mount
		for range 2 { // the second is the successor
			var err error
			m, err = EnsureMount(dir, state)
			must(t, err)
			if m.made == before || !m.mounted {
				t.Errorf("there before %v: mounted %v, made %v", before, m.mounted, m.made)
			}
		}
		must(t, m.Remove())
		if _, err := os.Stat(dir); (err == nil) != before {
			t.Errorf("the directory was there before: %v; after: %v", before, err)
		}
		if left, err := os.ReadDir(state); err != nil || len(left) > 0 {
			t.Errorf("left in the state directory: %v, %v", left, err)
		}
	}
}

// TestMarkOfAnother: what is marked of one directory is not undone at another one, which may be the
// node's.
func TestMarkOfAnother(t *testing.T) {
	dir, nodes, state := filepath.Join(t.TempDir(), "bpf"), filepath.Join(t.TempDir(), "nodes"), t.TempDir()
	ours, err := EnsureMount(dir, state)
	must(t, err)
	_, err = EnsureMount(nodes, t.TempDir()) // by somebody else
	must(t, err)
	defer func() { must(t, xdpprog.UnmountBPFFS(nodes)) }()
	for how, m := range map[string]func(string, string) (*Mount, error){"found": FindMount, "ensured": EnsureMount} {
		m, err := m(nodes, state)
		must(t, err)
		if m.Mounted() {
			t.Errorf("%s: a BPF file system of the node's would be unmounted", how)
		}
	}
	m, err := FindMount(dir+"/", state)
	must(t, err)
	if !m.Mounted() || !m.made {
		t.Error("ours would stay")
	}
	must(t, ours.Remove())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
