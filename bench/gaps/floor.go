package gaps

import (
	"context"
	_ "embed" // the C program
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"sluice.dev/sluice/bench/scratch"
)

//go:embed floor/floor.c
var floorSource []byte

// floor is the C loop, built.
type floor struct{ dir string }

func newFloor(ctx context.Context) (*floor, error) {
	cc := ""
	for _, name := range []string{"cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			cc = path
			break
		}
	}
	if cc == "" {
		return nil, errors.New("the floor is a C loop: there is no cc, gcc or clang in PATH; install one")
	}
	dir, err := scratch.Temporary("sluice-gaps-")
	if err != nil {
		return nil, err
	}
	f := &floor{dir}
	source := filepath.Join(dir, "floor.c")
	if err := os.WriteFile(source, floorSource, 0o600); err != nil {
		return nil, errors.Join(err, f.close())
	}
	if text, err := exec.CommandContext(ctx, cc, "-O2", "-o", f.path(), source).CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("build the C loop with %s: %w\n%s", cc, err, text), f.close())
	}
	return f, nil
}

func (f *floor) path() string { return filepath.Join(f.dir, "floor") }

// window measures once.
func (f *floor) window(ctx context.Context, cpu int, length time.Duration) (w Window, err error) {
	c := exec.CommandContext(ctx, f.path(), strconv.Itoa(cpu), strconv.FormatFloat(length.Seconds(), 'f', -1, 64))
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C is for us: we end it
	text, err := c.Output()
	if ctx.Err() != nil {
		return w, ctx.Err()
	}
	if err != nil {
		return w, fmt.Errorf("the C loop: %w", err)
	}
	if err := json.Unmarshal(text, &w); err != nil {
		return w, fmt.Errorf("output of the C loop: %w", err)
	}
	return w, nil
}

func (f *floor) close() error { return os.RemoveAll(f.dir) }
