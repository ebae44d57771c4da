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

// maxState bounds a file that is read as a whole. Each has some lines.
const maxState = 16 << 20

// StateDirectory refuses a directory for the daemon's own files that is a link, or that others may
// write.
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

// OpenState opens one of the daemon's own files with these flags of os.OpenFile. With os.O_CREATE a
// missing file is made, for its owner alone.
func OpenState(path string, flag int) (*os.File, error) {
	if err := StateDirectory(filepath.Dir(path)); err != nil {
		return nil, err
	}
	return open(path, flag)
}

// OpenStateDirectory opens a directory of the daemon's own.
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

// NewSuffix is what the name of a file has more while WriteState writes it.
const NewSuffix = ".new"

// WriteState replaces one of the daemon's own files as a whole.
func WriteState(path string, content []byte) (err error) {
	if err := StateDirectory(filepath.Dir(path)); err != nil {
		return err
	}
	next := path + NewSuffix
	// A process that was killed left it. A link at its place goes, and not what it leads to.
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := OpenState(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(next))
	}
	return err
}

// Socket refuses what is at the path of a socket of the daemon's own and is none, or is another
// user's. A missing one is fs.ErrNotExist, if its directory can be trusted.
func Socket(path string) error {
	if err := StateDirectory(filepath.Dir(path)); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return &Refusal{path, "exists and is no socket, but " + kind(info.Mode()),
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
