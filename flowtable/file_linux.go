package flowtable

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrInUse means that another process has the table's file open. A second
// instance must refuse to start: two processes in one table would reuse each
// other's records, since grace periods do not reach across processes.
var ErrInUse = errors.New("flowtable: file is in use by another process")

// File is a table in a mapped file. On a tmpfs it outlives the process but not the
// machine, which is right: its times are times since boot.
type File struct {
	Table    *Table
	Recovery Recovery
	file     *os.File
	mem      []byte
}

// OpenFile opens or makes the table's file, locks it against other processes for
// as long as it is open, and recovers the flows in it. A file of another version
// or size, or a damaged one, is replaced by an empty table; Recovery says why.
func OpenFile(path string, c Config, now Time) (*File, error) {
	size, err := Size(c)
	if err != nil {
		return nil, err
	}
	f, err := openLocked(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t := &File{file: f}
	if err := t.open(size, c, now); err != nil {
		t.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// lockTries bounds how often a file may be deleted between its opening and locking.
const lockTries = 10

// openLocked opens the file that has the path, and locks it.
func openLocked(path string) (*os.File, error) {
	for range lockTries {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		current, err := lock(f, path)
		if current && err == nil {
			return f, nil
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
	return nil, errors.New("is deleted again and again while it is opened: who does that?")
}

// lock locks an open file, and says whether it still is what the path names: who
// had it locked before may have deleted it (Remove). With a lock on a file without a name, the
// next process would make another one, and both would run.
func lock(f *os.File, path string) (current bool, err error) {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, ErrInUse
		}
		return false, fmt.Errorf("flock: %w", err)
	}
	ours, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(ours, named), err
}

func (f *File) open(size int64, c Config, now Time) error {
	found, err := f.file.Stat()
	if err != nil {
		return err
	}
	why := ""
	if found.Size() != size {
		if why = "new file"; found.Size() != 0 {
			why = fmt.Sprintf("the file has %d bytes, this configuration needs %d", found.Size(), size)
		}
		// Through zero, so that nothing old shows through.
		if err := errors.Join(f.file.Truncate(0), f.file.Truncate(size)); err != nil {
			return err
		}
	}
	if err := f.mapMemory(size); err != nil {
		return err
	}
	if why == "" {
		f.Table, f.Recovery, err = Recover(f.mem, c, now)
		if err == nil || !errors.Is(err, ErrLayout) {
			return err
		}
		why = err.Error()
	}
	f.Recovery = Recovery{Fresh: true, Why: why}
	f.Table, err = New(f.mem, c)
	return err
}

// mapMemory maps the file and makes sure that all of it is backed: a page that
// cannot be had must be an error now, not a SIGBUS in a worker later.
func (f *File) mapMemory(size int64) error {
	if err := unix.Fallocate(int(f.file.Fd()), 0, 0, size); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("reserving %d bytes: %w", size, err)
	}
	mem, err := unix.Mmap(int(f.file.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap of %d bytes: %w", size, err)
	}
	f.mem = mem
	// Best effort: without huge pages the table works, with more TLB misses.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	// Linux 5.14; before that, the pages come with their first use.
	_ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	return nil
}

// Close unmaps the table and lets another process have it. Nobody may use the
// Table any more. The flows stay in the file.
func (f *File) Close() error {
	var unmap error
	if f.mem != nil {
		unmap = unix.Munmap(f.mem)
		f.mem, f.Table = nil, nil
	}
	return errors.Join(unmap, f.file.Close()) // closing releases the lock
}

// Remove closes the table and deletes the file: its flows are not wanted again.
func (f *File) Remove() error {
	// Deleted while locked, so that no other process can have opened it in between.
	return errors.Join(os.Remove(f.file.Name()), f.Close())
}
