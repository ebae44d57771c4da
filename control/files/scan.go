package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/internal/trusted"
)

// file is the state of one file.
type file struct {
	stamp   trusted.Stamp
	since   time.Time // when it was first seen like this
	read    bool      // like this
	retry   bool      // a system call failed at the last reading: read again at the next scan
	objects map[objects.ObjectID]bool
	next    *found // the objects read, until they are applied
	held    []held // with Addresses: its Services of type LoadBalancer
}

const (
	// maxFiles bounds a directory: one file per object of a large cluster.
	maxFiles = 100_000
	// maxBytes bounds a file. A List of 10,000 Services and their EndpointSlices has some 40 MiB.
	maxBytes = 256 << 20
	// maxSettles times Settle is how long the others wait for a file that keeps changing.
	maxSettles = 20
)

// scan reads the changed files once all have settled, and applies them as one batch. It reports
// whether a file has not settled.
func (w *Watcher) scan(now time.Time) (unsettled bool, err error) {
	names, err := w.list()
	if err != nil {
		return false, err
	}
	for _, name := range names {
		w.beat.Beat() // there may be 100,000 files
		if !w.look(name, now).settled(now, w.Settle) {
			unsettled = true
		}
	}
	if !unsettled {
		w.unsettledSince = time.Time{}
	} else if w.unsettledSince.IsZero() {
		w.unsettledSince = now
	}
	if unsettled && now.Sub(w.unsettledSince) < maxSettles*w.Settle {
		return true, nil
	}
	if w.Addresses != nil {
		select { // changes before a call of Sync count
		case <-w.Addresses.Changed():
			w.decide = true
		default:
		}
	}
	var batch tracker.Batch
	changed := w.decide
	for _, name := range names {
		w.beat.Beat()
		if f := w.files[name]; !f.read && f.settled(now, w.Settle) {
			if f.read = w.read(name, f, &batch); f.read {
				changed = true
			} else {
				unsettled = true
			}
		}
	}
	for name, f := range w.files {
		if _, there := slices.BinarySearch(names, name); !there {
			f.replace(w.place(name), &found{}, &batch)
			delete(w.files, name)
			changed = true
		}
	}
	if !changed {
		return unsettled, nil
	}
	w.decide = false
	if w.Addresses != nil {
		w.give(&batch)
	}
	for name, f := range w.files {
		if f.next != nil {
			f.replace(w.place(name), f.next, &batch)
			f.next = nil
		}
	}
	w.Tracker.Apply(&batch)
	return unsettled, nil
}

// list returns the names of manifests, in order.
func (w *Watcher) list() (names []string, err error) {
	// Checked each time: modes change.
	if !w.AnyOwner {
		if err := trusted.Directory(w.Dir); err != nil {
			return nil, err
		}
	}
	entries, err := os.ReadDir(w.Dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			continue
		}
		// Follows symbolic links; a link to nothing is no file. A file whose kind cannot be read
		// stays in the list: it is not known to be gone.
		s, err := os.Stat(filepath.Join(w.Dir, name))
		if err == nil && s.Mode().IsRegular() || err != nil && !errors.Is(err, fs.ErrNotExist) {
			names = append(names, name)
		}
	}
	if len(names) > maxFiles {
		return nil, fmt.Errorf("%s has more than %d manifests", w.Dir, maxFiles)
	}
	return names, nil
}

// look records whether a file has changed.
func (w *Watcher) look(name string, now time.Time) *file {
	f := w.files[name]
	if f == nil {
		f = &file{since: now}
		w.files[name] = f
	}
	s, err := trusted.StampOf(filepath.Join(w.Dir, name)) // zero after an error
	if errors.Is(err, fs.ErrNotExist) || s != f.stamp {
		f.stamp, f.since, f.read = s, now, false
	} else if f.retry {
		f.read = false
	}
	return f
}

// settled reports whether the file has not changed for a while, by its modification time or by our
// clock.
func (f *file) settled(now time.Time, settle time.Duration) bool {
	return f.read || now.Sub(f.since) >= settle || now.Sub(f.stamp.Modified) >= settle
}

// read reads a file into f.next; if it cannot be used, that is reported instead. It returns false
// if the file changed meanwhile.
func (w *Watcher) read(name string, f *file, batch *tracker.Batch) bool {
	path := filepath.Join(w.Dir, name)
	data, err := w.readBounded(path)
	if s, serr := trusted.StampOf(path); errors.Is(serr, fs.ErrNotExist) || s != f.stamp {
		return false
	}
	if f.retry = errors.As(err, new(syscall.Errno)); err != nil {
		w.keep(name, err, batch)
		return true
	}
	found, err := decode(data)
	if err != nil {
		w.keep(name, err, batch)
		return true
	}
	f.next = found
	return true
}

// keep reports a file that cannot be used; its former objects stay.
func (w *Watcher) keep(name string, err error, batch *tracker.Batch) {
	from := w.place(name)
	var at *documentError
	if errors.As(err, &at) {
		from.Document = at.document
	}
	problem := objects.Problem{Source: from, Message: err.Error(), Severity: objects.Refused,
		Serving: len(w.files[name].objects) > 0}
	if problem.Serving {
		problem.Message += "; the objects it had before stay"
	}
	batch.Report(from, []objects.Problem{problem})
}

// replace adds the objects of a file to the batch, and deletes its former ones that are missing.
func (f *file) replace(from objects.Source, found *found, batch *tracker.Batch) {
	now := found.put(from, batch)
	for id := range f.objects {
		if !now[id] {
			batch.Delete(from, id)
		}
	}
	f.objects = now
}

func (w *Watcher) place(name string) objects.Source {
	return objects.Source{Kind: objects.Manifests, Path: filepath.Join(w.Dir, name)}
}

// errEmpty: a file is usually empty because it is about to be written.
var errEmpty = errors.New("the file is empty; to take its objects away, delete it")

func (w *Watcher) open(path string) (*os.File, error) {
	if w.AnyOwner {
		return os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	}
	return trusted.Open(path)
}

func (w *Watcher) readBounded(path string) ([]byte, error) {
	f, err := w.open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxBytes:
		return nil, fmt.Errorf("the file is larger than %d MiB", maxBytes>>20)
	case len(data) == 0:
		return nil, errEmpty
	}
	return data, nil
}
