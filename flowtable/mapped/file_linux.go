package mapped

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/trusted"
)

// File is a locked file, and the memory that it is mapped to.
type File struct {
	Mem  []byte // of page alignment; nil before Map or Empty; nobody may use it after Close
	file *os.File
	path string // Replace changes it
	live bool   // another process uses the memory
}

// Open opens or makes the file that has the path, locks it against other processes
// for as long as it is open, and maps size bytes of it. A file of another size is
// emptied, and why is the reason; otherwise why is empty. It fails with ErrInUse if another
// process has the file, and with a trusted.Refusal if others may write it or its directory.
func Open(path string, size int64) (f *File, why string, err error) {
	if f, err = Lock(path); err != nil {
		return nil, "", err
	}
	found, err := f.Size()
	if err == nil {
		if found == size {
			err = f.Map(size)
		} else {
			why, err = resized(found, size), f.Empty(size)
		}
	}
	if err != nil {
		f.Close()
		return nil, "", err
	}
	return f, why, nil
}

// resized is why a file is emptied.
func resized(found, size int64) string {
	if found == 0 {
		return NewFile
	}
	return fmt.Sprintf("the file has %d bytes, this configuration needs %d", found, size)
}

// Lock opens or makes the file that has the path and locks it, as Open does, and changes nothing of
// what is in it. Map or Empty must follow, before Mem is used.
func Lock(path string) (*File, error) {
	file, err := openLocked(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &File{file: file, path: path}, nil
}

// Take returns a file that another process has locked and has given to this one, whose the lock is
// from then on as well: it ends when neither has the file open. Map must follow. The other process
// may be at work with the memory, so Map leaves its pages as they are, which are huge if it could
// have such.
func Take(file *os.File, path string) *File { return &File{file: file, path: path, live: true} }

// FD is the file's descriptor, for another process. It stays the File's.
func (f *File) FD() int { return int(f.file.Fd()) }

// Size returns the file's size in bytes.
func (f *File) Size() (int64, error) {
	found, err := f.file.Stat()
	if err != nil {
		return 0, err
	}
	return found.Size(), nil
}

// ReadAt implements io.ReaderAt, for who decides by the contents what to map.
func (f *File) ReadAt(b []byte, offset int64) (int, error) { return f.file.ReadAt(b, offset) }

// Empty gives the file its size, by way of zero, so that all of it reads as zero, and maps it.
func (f *File) Empty(size int64) error {
	if err := errors.Join(f.file.Truncate(0), f.file.Truncate(size)); err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	return f.Map(size)
}

// Replace gives the file the path of another one that this process has locked, too: until then, a
// process that opens the path waits for or finds the other one, which has no name afterwards.
func (f *File) Replace(other *File) error {
	if err := os.Rename(f.path, other.path); err != nil {
		return err
	}
	f.path = other.path
	return nil
}

// lockTries bounds how often a file may be deleted between its opening and locking.
const lockTries = 10

// openLocked opens the file that has the path, and locks it.
func openLocked(path string) (*os.File, error) {
	for range lockTries {
		f, err := trusted.OpenState(path, os.O_RDWR|os.O_CREATE)
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

// lock locks an open file, and reports whether the path still names that file: the process that had
// it locked may have deleted it (Remove). With a lock on a deleted file, the next process would
// make another one, and both would run.
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
	named, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(ours, named), err
}

// Map maps a file of that size and makes sure that all of it is backed: a page that
// cannot be had must be an error now, not a SIGBUS in a worker later.
func (f *File) Map(size int64) error {
	if err := unix.Fallocate(int(f.file.Fd()), 0, 0, size); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%s: reserving %d bytes: %w", f.path, size, err)
	}
	mem, err := Map(int(f.file.Fd()), int(size))
	if err != nil {
		return fmt.Errorf("%s: mmap of %d bytes: %w", f.path, size, err)
	}
	f.Mem = mem
	if !f.live {
		Collapse(mem)
	}
	return nil
}

// Map maps a whole file of a tmpfs, or one of memfd_create(2), and makes sure that each page is
// there. Where the file has huge pages (Collapse) they are mapped as such. Unmap unmaps it.
func Map(file, size int) ([]byte, error) {
	mem, err := mapAligned(file, size)
	if err != nil {
		return nil, err
	}
	// Before Linux 6.1 huge pages come from here, where shmem_enabled is advise.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	// Linux 5.14; before that, the pages come with their first use.
	_ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	return mem, nil
}

// Collapse makes huge pages of a file that Map has mapped, from Linux 6.1 on, which the settings of
// /sys/kernel/mm/transparent_hugepage mostly forbid otherwise. Best effort: with small pages the
// memory works, with more TLB misses. Nobody else should use the memory meanwhile, and no page may
// be pinned, as those of sockets are: it stays as it is.
func Collapse(mem []byte) { _ = unix.Madvise(mem, unix.MADV_COLLAPSE) }

// Unmap unmaps what Map has mapped.
func Unmap(mem []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)))
}

// hugePage is the size of a huge page on amd64, and on arm64 with pages of 4 KiB. The file must
// begin at a multiple of it, or no entry of the page table can point to a whole one.
const hugePage = 2 << 20

// mapAligned maps a whole file at a multiple of hugePage. It takes a piece of the address
// space that is large enough, puts the file in its middle, and gives the ends back.
func mapAligned(fd, size int) ([]byte, error) {
	page := os.Getpagesize()
	size = (size + page - 1) &^ (page - 1)
	room, err := unix.MmapPtr(
		-1, 0, nil, uintptr(size+hugePage), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE,
	)
	if err != nil {
		return nil, err
	}
	before := int(-uintptr(room) & (hugePage - 1))
	// Safety: all of it is inside the mapping above, which only this function has; the file
	// replaces its middle.
	start := unsafe.Add(room, before)
	if _, err := unix.MmapPtr(
		fd, 0, start, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED,
	); err != nil {
		return nil, errors.Join(err, unix.MunmapPtr(room, uintptr(size+hugePage)))
	}
	if before > 0 {
		err = unix.MunmapPtr(room, uintptr(before))
	}
	if after := hugePage - before; after > 0 && err == nil {
		err = unix.MunmapPtr(unsafe.Add(start, size), uintptr(after))
	}
	return unsafe.Slice((*byte)(start), size), err
}

// Close unmaps the memory and lets another process have the file, with what is in it.
func (f *File) Close() error {
	var unmap error
	if f.Mem != nil {
		unmap = Unmap(f.Mem)
		f.Mem = nil
	}
	return errors.Join(unmap, f.file.Close()) // closing releases the lock
}

// Remove closes the file and deletes it.
func (f *File) Remove() error {
	// Deleted while locked, so that no other process can have opened it in between.
	return errors.Join(os.Remove(f.path), f.Close())
}
