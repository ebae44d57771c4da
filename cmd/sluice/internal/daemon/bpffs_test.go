package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"sluice.dev/sluice/control/config"
)

// TestMount: a directory that was there stays, one of ours goes, also when a successor of the
// daemon that made it takes it away.
func TestMount(t *testing.T) {
	for _, before := range []bool{false, true} {
		dir, state := filepath.Join(t.TempDir(), "bpf"), t.TempDir()
		if before {
			must(t, os.Mkdir(dir, 0o700))
		}
		var d *Daemon
		for range 2 { // the second is the successor
			d = &Daemon{config: &config.Configuration{BPFFS: dir, StateDir: state}}
			must(t, d.mount())
			if want := (ownMount{mounted: true, made: !before}); d.bpffs != want {
				t.Errorf("there before %v: %+v, want %+v", before, d.bpffs, want)
			}
		}
		must(t, d.unmount())
		if _, err := os.Stat(dir); (err == nil) != before {
			t.Errorf("the directory was there before: %v; after: %v", before, err)
		}
		if left, err := os.ReadDir(state); err != nil || len(left) > 0 {
			t.Errorf("left in the state directory: %v, %v", left, err)
		}
	}
}
