package flowtable

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/flowtable/mapped"
	"sluice.dev/sluice/internal/trusted"
)

// ErrInUse means that another process has the table's file open. A second instance must not start:
// two processes in one table would reuse each other's records, because grace periods do not cover
// other processes.
var ErrInUse = mapped.ErrInUse

// File is a table in a mapped file. On a tmpfs it outlives the process but not a reboot, as it
// must: its times are times since boot.
type File struct {
	Table    *Table
	Recovery Recovery
	file     *mapped.File
	resting  *mapped.File // the words of restingUDP
	// readerOf is the package's readerOf, or a test's.
	readerOf func(version uint32) func(conn.Meta) conn.Meta
}

// Resize decides about flows that do not fit in a table of the configured size.
type Resize uint8

const (
	ResizeFit   Resize = iota // the table keeps the size of the file
	ResizeForce               // the flows that do not fit are lost
)

// OpenFile opens or makes the table's file, locks it against other processes while it is open, and
// recovers the flows in it. If the table has another size, or another version that this program
// knows, OpenFile moves the flows to a table of the configured size, which needs the memory of both
// tables meanwhile. If the memory or the configured size is too small, resize decides. An empty
// table replaces a file that is damaged or of an unknown version. Recovery reports the action and
// its reason.
func OpenFile(path string, c Config, now Time, resize Resize) (*File, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	file, err := mapped.Lock(path)
	if err != nil {
		return nil, err
	}
	f := &File{file: file, readerOf: readerOf}
	if err = f.open(path, c, now, resize); err == nil {
		err = f.mapResting(path, false)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f.Table.resting[restingUDP].assume(now.Ticks(), f.Table.maxRestTicks())
	return f, nil
}

// RestingSuffix is added to the path of the table's file to name the file of resting keys. Only a
// process that has locked the table's file may use it.
const RestingSuffix = ".resting"

// mapResting maps the file of UDP's resting keys as their words. live: another process uses the
// file, which has their size.
func (f *File) mapResting(path string, live bool) error {
	file, err := trusted.OpenState(path+RestingSuffix, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	f.resting = mapped.Take(file, path+RestingSuffix)
	r := &f.Table.resting[restingUDP]
	size := int64(len(r.words)) * int64(unsafe.Sizeof(r.words[0]))
	lost := r.words   // of flows that did not fit into the table (mover.lose)
	var former []byte // of a table of another size
	found, err := f.resting.Size()
	switch {
	case err != nil:
	case found == 0 || found == size || live:
		err = f.resting.Map(size)
	default:
		former = make([]byte, found)
		if _, err = f.resting.ReadAt(former, 0); err == nil {
			err = f.resting.Empty(size)
		}
	}
	if err != nil {
		return err
	}
	r.words = mapped.Slice[atomic.Uint32](f.resting.Mem, 0, len(r.words))
	r.keep(former)
	for i := range lost {
		if until := Ticks(lost[i].Load()); until != 0 {
			raise(&r.words[i], until)
		}
	}
	return nil
}

func (f *File) open(path string, c Config, now Time, resize Resize) error {
	// A process that died while it moved flows left this file; the file at path is intact.
	if err := os.Remove(path + ".new"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	found, version, why := f.found(c)
	if why == "" {
		err := f.recoverFound(path, found, version, c, now, resize)
		if err == nil || !errors.Is(err, ErrLayout) {
			return err
		}
		why = err.Error()
	}
	if err := f.file.Empty(c.layout().size); err != nil {
		return err
	}
	f.Recovery = Recovery{Fresh: true, Why: why, Unread: why != mapped.NewFile}
	incarnation := uint64(1)
	if c.Group {
		incarnation |= unnoted
	}
	var err error
	f.Table, err = format(f.file.Mem, c, incarnation)
	return err
}

// found returns c with the sizes of the table in the file, and the table's version. If the file has
// no table of a known version, why is the reason.
func (f *File) found(c Config) (found Config, version uint32, why string) {
	size, err := f.file.Size()
	switch {
	case err != nil:
		return c, 0, err.Error()
	case size == 0:
		return c, 0, mapped.NewFile
	}
	page := heapMemory(headerSize)
	if _, err := f.file.ReadAt(page, 0); err != nil {
		return c, 0, fmt.Sprintf("no flow table here: %d bytes", size)
	}
	// Safety: the page is aligned, longer than a head, and without pointers.
	h := (*head)(unsafe.Pointer(&page[0]))
	switch {
	case h.magic != headMagic:
		return c, 0, "no flow table here"
	case f.readerOf(h.version) == nil:
		return c, 0, wrongVersion(h.version)
	}
	found = c
	found.IPv4Flows, found.IPv6Flows = h.flows[0], h.flows[1]
	if found.check() != nil || found.layout().size != size || h.size != size {
		return c, 0, fmt.Sprintf("damaged: %d bytes for %d IPv4 and %d IPv6 flows", size, h.flows[0], h.flows[1])
	}
	return found, h.version, ""
}

// recoverFound recovers the table in the file. If it can, it moves the flows to a table of the
// configured size and of this version.
func (f *File) recoverFound(path string, found Config, version uint32, c Config, now Time, resize Resize) error {
	if err := f.file.Map(found.layout().size); err != nil {
		return err
	}
	kept := ""
	if found != c || version != headVersion {
		err := f.moveTo(path+".new", found, version, c, now, resize)
		if err == nil || errors.Is(err, ErrLayout) {
			return err
		}
		kept = err.Error()
	}
	var err error
	if version == headVersion {
		f.Table, f.Recovery, err = Recover(f.file.Mem, found, now)
	} else if err = f.moveTo(path+".new", found, version, found, now, resize); err != nil {
		return fmt.Errorf("%w: %s, and its flows cannot be moved: %w", ErrLayout, wrongVersion(version), err)
	}
	if kept != "" {
		f.Recovery.Kept, f.Recovery.Why = true, kept
		f.Recovery.FoundFlows = [2]uint32{found.IPv4Flows, found.IPv6Flows}
	}
	return err
}

// moveTo makes a new file and table, moves the flows, and replaces this file by the new one.
func (f *File) moveTo(path string, found Config, version uint32, c Config, now Time, resize Resize) error {
	old, err := openVersion(f.file.Mem, found, version)
	if err != nil {
		return err
	}
	file, err := mapped.Lock(path)
	if err != nil {
		return err
	}
	var t *Table
	var rec Recovery
	if err = file.Empty(c.layout().size); err == nil {
		t, rec, err = moveFlows(old, f.readerOf(version), file.Mem, c, now, resize == ResizeForce)
	}
	if err == nil {
		err = file.Replace(f.file)
	}
	if err == nil {
		dead := f.file
		f.file, f.Table, f.Recovery = file, t, rec
		return dead.Close()
	}
	return errors.Join(err, file.Remove())
}

// TakeFile maps a table's file that another process has passed to this one. The other process
// continues to use the table until Table.Assume (see Share). The File owns file, also after an
// error.
func TakeFile(file *os.File, path string, c Config) (*File, error) {
	f := &File{file: mapped.Take(file, path), readerOf: readerOf}
	found, version, why := f.found(c)
	switch {
	case why != "":
	case version != headVersion:
		why = wrongVersion(version)
	case found != c:
		why = fmt.Sprintf("it has %s, configured are %s", Layout(found), Layout(c))
	}
	err := error(nil)
	if why != "" {
		err = fmt.Errorf("%w: %s", ErrLayout, why)
	} else if err = f.file.Map(found.layout().size); err == nil {
		f.Table, err = Share(f.file.Mem, c)
	}
	if err == nil {
		err = f.mapResting(path, true)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	f.Recovery = Recovery{}
	return f, nil
}

// FD returns the file's descriptor, to pass to another process. The File still owns it.
func (f *File) FD() int { return f.file.FD() }

// Close unmaps the table and lets another process open it. The Table must not be used afterwards.
// The flows stay in the file.
func (f *File) Close() error {
	f.Table = nil
	return errors.Join(f.closeResting((*mapped.File).Close), f.file.Close())
}

// closeResting applies end, which closes or removes, to the file of resting keys, if there is one.
func (f *File) closeResting(end func(*mapped.File) error) error {
	if f.resting == nil {
		return nil
	}
	return end(f.resting)
}

// Remove closes the table and deletes the file, with its flows.
func (f *File) Remove() error {
	f.Table = nil
	return errors.Join(f.closeResting((*mapped.File).Remove), f.file.Remove())
}
