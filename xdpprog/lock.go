package xdpprog

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/trusted"
)

// ErrInUse is returned by Load if another Steering, of this process or another, has the pin
// directory locked. Load has then changed nothing.
var ErrInUse = errors.New("another gateway uses it")

// lockTries bounds how often the directory may be removed while it is being locked.
const lockTries = 100

// lockPins makes the pin directory and locks it for this Steering until the file is closed: maps
// have one writer, and links one owner. The kernel releases the lock of a process that was killed.
func lockPins(pinDir string) (*os.File, error) {
	if ok, err := onBPFFS(pinDir); err != nil {
		return nil, fmt.Errorf("pin directory %s: %w", pinDir, err)
	} else if !ok {
		return nil, fmt.Errorf(
			"pin directory %s: %w; mount one (mount -t bpf bpf DIR) or choose a directory on one", pinDir, ErrNoBPFFS,
		)
	}
	f, err := lockDir(pinDir)
	if errors.Is(err, ErrInUse) {
		return nil, fmt.Errorf(
			"pin directory %s: %w: stop that one, or give this one a BPF file system, interfaces and a host link "+
				"of its own", pinDir, err,
		)
	}
	if err != nil {
		return nil, fmt.Errorf("pin directory %s: %w", pinDir, err)
	}
	return f, nil
}

// lockDir locks a directory, which it makes if it is missing. The previous holder may have removed
// the directory before it released the lock: a lock on a removed directory does not count.
func lockDir(dir string) (*os.File, error) {
	for range lockTries {
		err := os.MkdirAll(dir, 0o700)
		if errors.Is(err, os.ErrExist) { // and is gone again
			continue
		}
		if err != nil {
			return nil, err
		}
		f, err := trusted.OpenStateDirectory(dir) // whose writers could replace programs and maps
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, ErrInUse
			}
			return nil, fmt.Errorf("lock: %w", err)
		}
		if isThere(f, dir) {
			return f, nil
		}
		f.Close()
	}
	return nil, errors.New("it is removed repeatedly")
}

// isThere reports whether a path still names the open file.
func isThere(f *os.File, path string) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	found, err := os.Lstat(path)
	return err == nil && os.SameFile(opened, found)
}
