package scratch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Once makes a directory that is not there yet: fill gets an empty one beside it, which is renamed
// when all is there. Nobody ever changes it again. Of several callers, in any processes, one fills
// it and the others wait.
func Once(ctx context.Context, dir string, fill func(next string) error) error {
	there := func() bool {
		_, err := os.Stat(dir)
		return err == nil
	}
	if there() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	unlock, err := Lock(ctx, dir+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if there() { // by somebody else, meanwhile
		return nil
	}
	next := dir + ".next" // what lies there already is of a caller that was killed: the lock is ours
	if err := errors.Join(os.RemoveAll(next), os.Mkdir(next, 0o755)); err != nil {
		return err
	}
	defer os.RemoveAll(next) // after the rename there is nothing of that name
	if err := fill(next); err != nil {
		return err
	}
	return os.Rename(next, dir)
}

// Lock takes an advisory lock on a file. The kernel gives it back when its holder
// dies, so that a killed one stops nobody.
func Lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("%s is locked by somebody else: %w", path, ctx.Err()), f.Close())
		case <-tick.C:
		}
	}
}
