package trusted

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxState bounds a file that ReadState reads. Such files have some lines.
const maxState = 16 << 20

// StateDirectory rejects a directory for the daemon's own files if it is a link or others may write
// it.
func StateDirectory(path string) error {
	path = filepath.Clean(path)
	above, err := resolve(filepath.Dir(path))
	if err != nil {
		return err
	}
	if err := directory(above, true); err != nil {
		return err
	}
	return directory(path, false)
}

// OpenState opens one of the daemon's own files with flags of os.OpenFile. With os.O_CREATE it
// makes a missing file, which only the owner may read and write.
func OpenState(path string, flag int) (*os.File, error) {
	if err := StateDirectory(filepath.Dir(path)); err != nil {
		return nil, err
	}
	return open(path, flag)
}

// OpenStateDirectory opens one of the daemon's own directories.
func OpenStateDirectory(path string) (*os.File, error) {
	if err := StateDirectory(path); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// ReadState reads one of the daemon's own files.
func ReadState(path string) ([]byte, error) {
	f, err := OpenState(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readBounded(f, maxState)
}

// NewSuffix is appended to the name of a file while WriteState writes it.
const NewSuffix = ".new"

// WriteState replaces the content of one of the daemon's own files atomically.
func WriteState(path string, content []byte) error { return writeState(path, content, false) }

// SyncState is WriteState that returns when the content is on the disk.
func SyncState(path string, content []byte) error {
	if err := writeState(path, content, true); err != nil {
		return err
	}
	dir, err := OpenStateDirectory(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func writeState(path string, content []byte, sync bool) (err error) {
	if err := StateDirectory(filepath.Dir(path)); err != nil {
		return err
	}
	next := path + NewSuffix
	// A killed process may have left it. If it is a link, Remove removes the link and not its
	// target.
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := OpenState(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil && sync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(next))
	}
	return err
}

// Socket rejects a path for a socket of the daemon if it holds a file of another type or of another
// user. If the path does not exist and its directory is trusted, the error is fs.ErrNotExist.
func Socket(path string) error {
	if err := StateDirectory(filepath.Dir(path)); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return &Refusal{path, "is " + kind(info.Mode()) + ", not a socket",
			"remove it, or choose another stateDir"}
	}
	return owned(path, info, "remove it, or ")
}

func readBounded(f *os.File, most int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(content)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", f.Name(), most)
	}
	if err != nil {
		return nil, err
	}
	return content, nil
}
