package flowlog

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/trusted"
)

// A file's name is the time of its first line, but at least a microsecond later than the previous
// file's name: names must sort in the order in which the files were begun, also after the wall
// clock has stepped back. Lines go to the newest file. The previous file may still get the last
// lines of a process that hands over; older files are compressed.
const (
	prefix     = "flows-"
	plain      = ".jsonl"
	compressed = ".jsonl.gz"
	unfinished = ".new" // of a compressed file
	nameFormat = "20060102T150405.000000Z"

	keptPlain = 2

	// The maximum size of all files together is at least filesAtLeast times the size of one.
	filesAtLeast = 10
	largestFile  = 100e6
)

// list returns the names of the log's files in a directory, oldest first. If a file exists plain
// and compressed, because its compression was interrupted, only the plain one is listed.
func list(directory string) (names []string, err error) {
	found, err := os.ReadDir(directory)
	if err != nil {
		return nil, err
	}
	for _, f := range found { // sorted by name
		name, isPlain := strings.CutSuffix(f.Name(), plain)
		name, isCompressed := strings.CutSuffix(name, compressed)
		if !strings.HasPrefix(name, prefix) || !isPlain && !isCompressed {
			continue
		}
		if isCompressed && slices.Contains(names, name+plain) {
			continue
		}
		names = append(names, f.Name())
	}
	return names, nil
}

// began returns the time in the name of a file; false if the log did not write the file.
func began(name string) (time.Time, bool) {
	name, _, _ = strings.Cut(strings.TrimPrefix(name, prefix), ".jsonl")
	t, err := time.Parse(nameFormat, name)
	return t, err == nil
}

// logFiles lists the files that the log wrote. Other files in the directory are not rotated.
func logFiles(directory string) (names []string, err error) {
	names, err = list(directory)
	return slices.DeleteFunc(names, func(name string) bool { _, ok := began(name); return !ok }), err
}

// nameAfter returns the name of a file that begins now, after the files in names.
func nameAfter(names []string, now time.Time) string {
	now = now.UTC().Truncate(time.Microsecond)
	if len(names) > 0 {
		if last, _ := began(names[len(names)-1]); !now.After(last) {
			now = last.Add(time.Microsecond)
		}
	}
	return prefix + now.Format(nameFormat) + plain
}

// files writes lines to the newest file of a directory, and rotates it.
type files struct {
	directory string
	size      int64 // of a file, bytes, beyond which the next lines begin another
	max       int64 // of all files, bytes

	out     *os.File // nil: none is open
	written int64    // bytes in it
	torn    bool     // its last line is incomplete

	compressing chan struct{} // closed when no file is being compressed
	ending      atomic.Bool   // compression must stop
}

// write writes complete lines, and returns the number of lines that it wrote completely.
func (f *files) write(lines []byte, now time.Time) (n int, err error) {
	if f.out != nil && f.written >= f.size {
		f.out.Close()
		f.out = nil
	}
	if f.out == nil {
		if err := f.open(now); err != nil {
			return 0, err
		}
	}
	if f.torn {
		if _, err := f.out.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
		f.torn = false
	}
	n, err = f.out.Write(lines)
	if n > 0 {
		f.written += int64(n)
		f.torn = lines[n-1] != '\n'
	}
	if err != nil {
		f.close()
	}
	return bytes.Count(lines[:n], []byte{'\n'}), err
}

func (f *files) close() {
	if f.out != nil {
		f.out.Close()
		f.out = nil
	}
}

// open continues the newest file if it has room, or begins another, and removes and compresses old
// ones.
func (f *files) open(now time.Time) error {
	if err := os.MkdirAll(f.directory, 0o700); err != nil {
		return err
	}
	names, err := logFiles(f.directory)
	if err != nil {
		return err
	}
	if len(names) > 0 && strings.HasSuffix(names[len(names)-1], plain) {
		again, err := f.again(names[len(names)-1])
		if again || err != nil {
			return err
		}
	}
	names = append(names, nameAfter(names, now))
	if f.out, err = f.append(names[len(names)-1]); err != nil {
		return err
	}
	f.written, f.torn = 0, false
	f.tidy(names)
	return nil
}

func (f *files) append(name string) (*os.File, error) {
	return trusted.OpenState(filepath.Join(f.directory, name), os.O_RDWR|os.O_APPEND|os.O_CREATE)
}

// again opens a file to continue it. It returns false if the file is full.
func (f *files) again(name string) (ok bool, err error) {
	out, err := f.append(name)
	if err != nil {
		return false, err
	}
	info, err := out.Stat()
	if err != nil || info.Size() >= f.size {
		out.Close()
		return false, err
	}
	f.out, f.written, f.torn = out, info.Size(), false
	if f.written > 0 { // a process that was killed may have left part of a line
		var last [1]byte
		if _, err := out.ReadAt(last[:], f.written-1); err != nil {
			f.close()
			return false, err
		}
		f.torn = last[0] != '\n'
	}
	return true, nil
}

// tidy starts a goroutine that compresses the files that get no more lines, and removes the oldest
// files. If the goroutine of the last rotation is still busy, tidy leaves that to the next
// rotation.
func (f *files) tidy(names []string) {
	if f.compressing != nil {
		select {
		case <-f.compressing:
		default:
			return
		}
	}
	done := make(chan struct{})
	f.compressing = done
	go func() {
		defer close(done)
		for _, name := range names[:max(0, len(names)-keptPlain)] {
			if strings.HasSuffix(name, plain) {
				_ = compress(filepath.Join(f.directory, name), &f.ending) // after an error the file stays as it is
			}
		}
		removeOldest(f.directory, f.max-f.size) // the newest file grows
	}()
}

// removeOldest removes the oldest files until the remaining ones have at most max bytes. It keeps
// the newest keptPlain files, which may still be written to.
func removeOldest(directory string, max int64) {
	names, _ := logFiles(directory)
	for i, total := len(names)-1, int64(0); i >= 0; i-- {
		path := filepath.Join(directory, names[i])
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		if total += info.Size(); total > max && i < len(names)-keptPlain {
			_ = os.Remove(path)
		}
	}
}

// compress replaces a file by a compressed one. It syncs the compressed file to the disk before it
// removes the plain one. It stops once ending is set.
func compress(path string, ending *atomic.Bool) (err error) {
	to := strings.TrimSuffix(path, plain) + compressed
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := trusted.OpenState(to+unfinished, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	z, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err == nil {
		_, err = io.Copy(z, &untilEnding{in, ending})
		err = errors.Join(err, z.Close())
	}
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return errors.Join(err, os.Remove(to+unfinished))
	}
	if err := os.Rename(to+unfinished, to); err != nil {
		return err
	}
	if err := syncDirectory(filepath.Dir(to)); err != nil {
		return err
	}
	return os.Remove(path)
}

// untilEnding is a reader that fails once ending is set.
type untilEnding struct {
	io.Reader
	ending *atomic.Bool
}

var errEnding = errors.New("the log ends")

// Read implements io.Reader.
func (r *untilEnding) Read(b []byte) (int, error) {
	if r.ending.Load() {
		return 0, errEnding
	}
	return r.Reader.Read(b)
}

// syncDirectory syncs the names in a directory to the disk.
func syncDirectory(path string) error {
	d, err := trusted.OpenStateDirectory(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// reader reads a file of the log.
type reader struct {
	io.Reader
	file *os.File
}

// Close implements io.Closer.
func (r *reader) Close() error { return r.file.Close() }

// openRead opens a file for reading. If a plain file was compressed meanwhile, it opens the
// compressed one.
func openRead(directory, name string) (io.ReadCloser, error) {
	path := filepath.Join(directory, name)
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) && strings.HasSuffix(path, plain) {
		path = strings.TrimSuffix(path, plain) + compressed
		file, err = os.Open(path)
	}
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(path, compressed) {
		return file, nil
	}
	z, err := gzip.NewReader(file)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &reader{z, file}, nil
}
