package trusted

import (
	"os"
	"path/filepath"
)

// Directory refuses a directory of files for Open that others may write. Its links are followed.
func Directory(path string) error {
	to, err := resolve(path)
	if err != nil {
		return err
	}
	return directory(to, false)
}

// Open opens a file for reading that an operator or kubelet has written. Its links are followed:
// the files of a ConfigMap are links to those of ..data, which is a link to a directory.
func Open(path string) (*os.File, error) {
	if err := Directory(filepath.Dir(path)); err != nil {
		return nil, err
	}
	to, err := resolve(path)
	if err != nil {
		return nil, err
	}
	if err := directory(filepath.Dir(to), false); err != nil {
		return nil, err
	}
	return open(to, os.O_RDONLY)
}

// maxShared bounds a file that is read as a whole: a chain of certificates, a list of tokens.
const maxShared = 1 << 20

// Read reads a file as Open opens it.
func Read(path string) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readBounded(f, maxShared)
}
