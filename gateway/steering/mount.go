package steering

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/xdpprog"
)

// Mount records which part of a bpffs the gateway made and must remove.
type Mount struct {
	dir     string
	mark    string // the file that records the mount for the process after a killed daemon or a hand-over
	mounted bool
	made    bool // the daemon made the directory, too
}

// madeLine is in the mark if the daemon made the directory.
const madeLine = "directory made"

// EnsureMount mounts a bpffs if there is none, and records in stateDir what it did.
func EnsureMount(dir, stateDir string) (*Mount, error) {
	m, err := FindMount(dir, stateDir)
	if err != nil {
		return nil, err
	}
	_, before := os.Stat(dir)
	mounted, err := xdpprog.EnsureBPFFS(dir)
	if err != nil {
		return nil, err
	}
	if !mounted {
		return m, nil
	}
	m.mounted, m.made = true, errors.Is(before, os.ErrNotExist)
	text := dir + "\n"
	if m.made {
		text += madeLine + "\n"
	}
	return m, trusted.WriteState(m.mark, []byte(text))
}

// FindMount returns what a process recorded in stateDir about its bpffs. A record about another
// directory is ignored: this one may be the node's.
func FindMount(dir, stateDir string) (*Mount, error) {
	m := &Mount{dir: dir, mark: filepath.Join(stateDir, "bpffs")}
	text, err := trusted.ReadState(m.mark)
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	of, rest, _ := strings.Cut(string(text), "\n")
	m.mounted = err == nil && filepath.Clean(of) == filepath.Clean(dir)
	m.made = m.mounted && strings.Contains(rest, madeLine)
	return m, err
}

// Mounted reports whether Remove has something to undo.
func (m *Mount) Mounted() bool { return m.mounted }

// Remove undoes EnsureMount. A nil Mount has nothing to undo.
func (m *Mount) Remove() error {
	if m == nil || !m.mounted {
		return nil
	}
	err := xdpprog.UnmountBPFFS(m.dir)
	if err == nil && m.made {
		err = os.Remove(m.dir)
	}
	return errors.Join(err, os.Remove(m.mark))
}
