package trusted

import (
	"os"
	"path/filepath"
)

// Directory rejects a directory of files for Open if others may write it. It follows links.
func Directory(path string) error {
	to, err := resolve(path)
	if err != nil {
		return err
	}
	return directory(to, false)
}

// Open opens for reading a file that an operator or kubelet has written. It follows links: the
// files of a ConfigMap are links to the files in ..data, which is a link to a directory.
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

// maxShared bounds a file that Read reads: a chain of certificates, a list of tokens.
const maxShared = 1 << 20

// Read reads a file with the checks of Open.
func Read(path string) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readBounded(f, maxShared)
}
