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
	Mem  []byte // page-aligned; nil before Map or Empty; must not be used after Close
	file *os.File
	path string // Replace changes it
	live bool   // another process uses the memory
}

// Open opens or makes the file at path, locks it against other processes while it is open, and maps
// size bytes of it. It empties a file of another size and returns the reason in why; otherwise why
// is empty. It fails with ErrInUse if another process has the file open, and with a trusted.Refusal
// if other users may write the file or its directory.
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

// resized returns the reason why a file is emptied.
func resized(found, size int64) string {
	if found == 0 {
		return NewFile
	}
	return fmt.Sprintf("the file has %d bytes, this configuration needs %d", found, size)
}

// Lock opens or makes the file at path and locks it, as Open does, and does not change its
// contents. Call Map or Empty before using Mem.
func Lock(path string) (*File, error) {
	file, err := openLocked(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &File{file: file, path: path}, nil
}

// Take returns a file that another process has locked and passed to this one. Both processes then
// hold the lock; it ends when neither has the file open. Call Map before using Mem. The other
// process may be using the memory, so Map does not collapse its pages.
func Take(file *os.File, path string) *File { return &File{file: file, path: path, live: true} }

// FD returns the file's descriptor, to pass to another process. The File still owns it.
func (f *File) FD() int { return int(f.file.Fd()) }

// Size returns the file's size in bytes.
func (f *File) Size() (int64, error) {
	found, err := f.file.Stat()
	if err != nil {
		return 0, err
	}
	return found.Size(), nil
}

// ReadAt implements io.ReaderAt, for a caller that reads the contents before it decides how much to
// map.
func (f *File) ReadAt(b []byte, offset int64) (int, error) { return f.file.ReadAt(b, offset) }

// Empty truncates the file to zero and then to size, so that all of it reads as zero, and maps it.
func (f *File) Empty(size int64) error {
	if err := errors.Join(f.file.Truncate(0), f.file.Truncate(size)); err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	return f.Map(size)
}

// Replace renames the file to the path of another file, which this process has also locked. Until
// then a process that opens that path finds the other file; afterwards the other file has no name.
func (f *File) Replace(other *File) error {
	if err := os.Rename(f.path, other.path); err != nil {
		return err
	}
	f.path = other.path
	return nil
}

// lockTries bounds how often a file may be deleted between open and lock.
const lockTries = 10

// openLocked opens the file at path, and locks it.
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
	return nil, errors.New("is deleted repeatedly while it is opened: find the process that deletes it")
}

// lock locks an open file, and reports whether the path still names that file: the process that had
// it locked may have deleted it (Remove). If this process kept a lock on a deleted file, the next
// process would make another file, and both would run.
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

// Map maps size bytes of the file and reserves memory for all of them: a missing page must be an
// error now, not a SIGBUS in a worker later.
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

// Map maps size bytes of a file, which must be on a tmpfs or from memfd_create(2), and populates
// each page. If the file has huge pages (Collapse), they are mapped as huge pages. Use Unmap to
// unmap the result.
func Map(file, size int) ([]byte, error) {
	mem, err := mapAligned(file, size)
	if err != nil {
		return nil, err
	}
	// Before Linux 6.1 this is the only source of huge pages, if shmem_enabled is advise.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	// Linux 5.14; before that, pages are allocated at their first use.
	_ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	return mem, nil
}

// Collapse makes huge pages of a file that Map has mapped, from Linux 6.1 on. Without it the
// settings in /sys/kernel/mm/transparent_hugepage mostly forbid huge pages. Collapse is best
// effort: with small pages the memory works, with more TLB misses. No other process should use the
// memory meanwhile. The kernel does not collapse pinned pages, such as the pages of sockets.
func Collapse(mem []byte) { _ = unix.Madvise(mem, unix.MADV_COLLAPSE) }

// Unmap unmaps memory that Map has mapped.
func Unmap(mem []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)))
}

// hugePage is the size of a huge page on amd64, and on arm64 with pages of 4 KiB. The mapping must
// begin at a multiple of it, or no page table entry can refer to a whole huge page.
const hugePage = 2 << 20

// mapAligned maps size bytes of a file at a multiple of hugePage. It reserves address space that is
// large enough, maps the file inside it, and unmaps both ends.
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
	// Safety: the whole range is inside the mapping above, which only this function uses; the file
	// replaces its middle.
	start := unsafe.Add(room, before)
	if _, err := unix.MmapPtr(
		fd, 0, start, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED,
	); err != nil {
		// The kernel has unmapped the middle before it failed (mmap_region, mm/vma.c), and another
		// thread may have mapped memory there since: it must not be unmapped.
		return nil, errors.Join(err, unmapEnds(room, before, size))
	}
	return unsafe.Slice((*byte)(start), size), unmapEnds(room, before, size)
}

// unmapEnds unmaps size+hugePage bytes at room except for size bytes that follow the first before
// bytes. before is less than hugePage.
func unmapEnds(room unsafe.Pointer, before, size int) (err error) {
	if before > 0 {
		err = unix.MunmapPtr(room, uintptr(before))
	}
	return errors.Join(err, unix.MunmapPtr(unsafe.Add(room, before+size), uintptr(hugePage-before)))
}

// Close unmaps the memory and releases the file, with its contents, for another process.
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
	// Delete it while it is locked, so that no other process can have opened it in between.
	return errors.Join(os.Remove(f.path), f.Close())
}
