package affinity

import (
	"errors"
	"fmt"
	"os"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/mapped"
)

// ErrInUse means that another process has the table's file open.
var ErrInUse = mapped.ErrInUse

// File is a table in a mapped file. On a tmpfs it outlives the process but not a reboot, as it
// must: its times are times since boot.
type File struct {
	Table    *Table
	Recovery Recovery
	file     *mapped.File
}

// OpenFile opens or makes the table's file, locks it against other processes while it is open, and
// recovers the pins in it. An empty table replaces a file of another version or size, or a damaged
// one; Recovery has the reason.
func OpenFile(path string, c Config, now flowtable.Time) (*File, error) {
	size, err := Size(c)
	if err != nil {
		return nil, err
	}
	file, why, err := mapped.Open(path, size)
	if err != nil {
		return nil, err
	}
	f := &File{file: file}
	if why == "" {
		if f.Table, f.Recovery, err = recoverTable(file.Mem, &c, now); err != nil {
			why = err.Error() // ErrLayout, nothing else
		}
	}
	if why != "" {
		f.Table, f.Recovery = format(file.Mem, &c), Recovery{Fresh: true, Why: why}
	}
	return f, nil
}

// TakeFile maps a table's file that another process has passed to this one. Both may use it,
// because both change pins by the same protocol. The File owns file, also after an error.
func TakeFile(file *os.File, path string, c Config) (f *File, err error) {
	f = &File{file: mapped.Take(file, path)}
	size, err := Size(c)
	if err == nil {
		var found int64
		if found, err = f.file.Size(); err == nil && found != size {
			err = fmt.Errorf("%w: the file has %d bytes, this configuration needs %d", ErrLayout, found, size)
		}
	}
	if err == nil {
		err = f.file.Map(size)
	}
	if err == nil {
		f.Table, err = openView(f.file.Mem, &c)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.file.Close())
	}
	return f, nil
}

// FD returns the file's descriptor, to pass to another process. The File still owns it.
func (f *File) FD() int { return f.file.FD() }

// Close unmaps the table and lets another process open it. The Table must not be used afterwards.
// The pins stay in the file.
func (f *File) Close() error {
	f.Table = nil
	return f.file.Close()
}

// Remove closes the table and deletes the file, with its pins.
func (f *File) Remove() error {
	f.Table = nil
	return f.file.Remove()
}
