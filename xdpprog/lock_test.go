//go:build root

package xdpprog

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"sluice.dev/sluice/internal/trusted"
)

// TestSecondInstance: a second instance changes nothing while the first runs, and can start when
// the first has ended, whether it left its pins or removed them.
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
		t.Errorf("the second instance removed pins: %v", err)
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

// TestOthersPins: a pin directory that other users may write, or a link to a directory, is not
// used.
func TestOthersPins(t *testing.T) {
	isolate(t)
	c := Config{PinDir: pinDir(t)}
	must(t, os.MkdirAll(c.PinDir, 0o700))
	must(t, os.Chmod(c.PinDir, 0o777))
	var refusal *trusted.Refusal
	if _, err := Load(c); !errors.As(err, &refusal) {
		t.Errorf("all may write it: %v", err)
	}
	must(t, os.Chmod(c.PinDir, 0o700))
	link := Config{PinDir: c.PinDir + "-link"}
	must(t, os.Symlink(filepath.Base(c.PinDir), link.PinDir))
	if _, err := Load(link); !errors.As(err, &refusal) {
		t.Errorf("a link: %v", err)
	}
	must(t, load(t, c).Close(true))
}
