package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"sluice.dev/sluice/xdpprog"
)

// ownMount says what of the bpffs is ours to take away.
type ownMount struct {
	mounted bool
	made    bool // its directory, too
}

// mountMark remembers it for a successor of a daemon that was killed, or handed over.
func (d *Daemon) mountMark() string { return filepath.Join(d.config.StateDir, "bpffs") }

// madeLine is in the mark where the directory was not there before.
const madeLine = "directory made"

// mount makes sure that there is a bpffs.
func (d *Daemon) mount() error {
	dir := d.config.BPFFS
	_, before := os.Stat(dir)
	mounted, err := xdpprog.EnsureBPFFS(dir)
	if err != nil {
		return err
	}
	if !mounted {
		text, err := os.ReadFile(d.mountMark())
		d.bpffs = ownMount{mounted: err == nil, made: strings.Contains(string(text), madeLine)}
		return nil
	}
	d.bpffs = ownMount{mounted: true, made: errors.Is(before, os.ErrNotExist)}
	mark := dir + "\n"
	if d.bpffs.made {
		mark += madeLine + "\n"
	}
	return os.WriteFile(d.mountMark(), []byte(mark), 0o600)
}

// unmount undoes mount.
func (d *Daemon) unmount() error {
	if !d.bpffs.mounted {
		return nil
	}
	err := xdpprog.UnmountBPFFS(d.config.BPFFS)
	if err == nil && d.bpffs.made {
		err = os.Remove(d.config.BPFFS)
	}
	return errors.Join(err, os.Remove(d.mountMark()))
}
