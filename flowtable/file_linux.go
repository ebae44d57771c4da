package flowtable

import (
	"errors"
	"fmt"

	"sluice.dev/sluice/flowtable/mapped"
)

// ErrInUse means that another process has the table's file open. A second
// instance must refuse to start: two processes in one table would reuse each
// other's records, since grace periods do not reach across processes.
var ErrInUse = mapped.ErrInUse

// File is a table in a mapped file. On a tmpfs it outlives the process but not the
// machine, which is right: its times are times since boot.
type File struct {
	Table    *Table
	Recovery Recovery
	file     *mapped.File
}

// OpenFile opens or makes the table's file, locks it against other processes for
// as long as it is open, and recovers the flows in it. A file of another version
// or size, or a damaged one, is replaced by an empty table; Recovery has the reason.
func OpenFile(path string, c Config, now Time) (*File, error) {
	size, err := Size(c)
	if err != nil {
		return nil, err
	}
	file, why, err := mapped.Open(path, size)
	if err != nil {
		return nil, err
	}
	f := &File{file: file}
	if err := f.open(why, c, now); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func (f *File) open(why string, c Config, now Time) (err error) {
	if why == "" {
		f.Table, f.Recovery, err = Recover(f.file.Mem, c, now)
		if err == nil || !errors.Is(err, ErrLayout) {
			return err
		}
		why = err.Error()
	}
	f.Recovery = Recovery{Fresh: true, Why: why}
	f.Table, err = New(f.file.Mem, c)
	return err
}

// Close unmaps the table and lets another process open it. The Table must not be used afterwards.
// The flows stay in the file.
func (f *File) Close() error {
	f.Table = nil
	return f.file.Close()
}

// Remove closes the table and deletes the file, with its flows.
func (f *File) Remove() error {
	f.Table = nil
	return f.file.Remove()
}
