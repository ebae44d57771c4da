// Package journal keeps the lines of a process's log at level info and above, so that an operator
// can ask for them later, also in the next process.
//
//	slog ──► Tee ──► log
//	          └────► logs.Writer ──► Journal ──► memory, for Since
//	                 (a queue)               └─► events.jsonl, for the next process
//
// Lines that tenants cause have bounds of their own, but come for as long as a tenant wants. So
// room is shared by messages: one that comes often displaces its own older lines first (thin).
//
// A call of the logger is an event: there is one text of both. The queue is bounded, so a disk that
// is slow or full delays nobody. A line is whole in the file once it is written; a process that is
// killed loses the lines of its queue at most.
package journal

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/internal/logs"
	"sluice.dev/sluice/internal/trusted"
)

// Names of the files: lines go to the first. Once it is full, the second gets the lines of both
// that thin leaves.
const (
	Name    = "events.jsonl"
	OldName = Name + ".1"
)

// Bounds in bytes: of a file and, for both files and the lines in memory, twice as many; of a line.
const (
	fileLimit = 512 << 10
	lineLimit = 16 << 10
)

// hangAfter is how long a write to the file may take until Err has it.
const hangAfter = 5 * time.Second

// Journal is the journal of one process.
type Journal struct {
	writer *logs.Writer

	// file is held while a file is read or written, which may take long. It guards dir and last.
	file sync.Mutex
	dir  string // "" before Own
	last []byte // line of earlier processes that was read; nil: there was none

	mu    sync.Mutex // guards the fields below; never held while a file is used
	lines []line     // in the order in which they came
	bytes int        // of lines
	err   error      // of the last write to the file
	began time.Time  // of the write to the file in progress; zero: there is none
}

// line is a line as slog's JSON handler writes it.
type line struct {
	at      time.Time // of the wall clock when it was written, see keep
	message string
	text    []byte
}

// New returns an empty journal, which writes no file before Own.
func New() *Journal {
	j := new(Journal)
	j.writer = logs.NewWriter((*sink)(j))
	return j
}

// Queue starts the queue: from then on callers of the logger do not wait for the file.
func (j *Journal) Queue() { j.writer.Queue() }

// Flush waits until the queue is written, for within at most.
func (j *Journal) Flush(within time.Duration) { j.writer.Flush(within) }

// Own reads the files that earlier processes have left in dir, and writes to them from then on,
// first the lines that the journal has. Another process may still write its last lines. If the
// files cannot be read, Own returns the error, and the journal begins with its own lines.
func (j *Journal) Own(dir string) error {
	j.file.Lock()
	defer j.file.Unlock()
	if j.dir != "" {
		return nil
	}
	before, readErr := readFiles(dir)
	if n := len(before); n > 0 {
		j.last = before[n-1]
	}
	j.mu.Lock()
	own := j.lines
	j.lines, j.bytes = nil, 0
	for _, l := range before {
		j.keep(l)
	}
	for _, l := range own {
		j.keep(l.text)
	}
	j.mu.Unlock()
	j.dir = dir
	for _, l := range own {
		j.store(l.text)
	}
	return readErr
}

// readFiles returns the lines of the files, the oldest first.
func readFiles(dir string) (lines [][]byte, err error) {
	for _, name := range []string{OldName, Name} {
		text, readErr := trusted.ReadState(filepath.Join(dir, name))
		if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
			err = errors.Join(err, readErr)
		}
		lines = slices.AppendSeq(lines, bytes.Lines(text))
	}
	return lines, err
}

// ReadLate reads the lines that another process has written since Own, after its end.
func (j *Journal) ReadLate() error {
	j.file.Lock()
	defer j.file.Unlock()
	if j.dir == "" {
		return nil // Own will read them
	}
	lines, err := readFiles(j.dir)
	if j.last != nil {
		at := slices.IndexFunc(lines, func(l []byte) bool { return bytes.Equal(l, j.last) })
		if at < 0 {
			return err // the files were thinned meanwhile: it is not known which lines are late
		}
		lines = lines[at+1:]
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	known := make(map[string]bool, len(j.lines))
	for _, l := range j.lines {
		known[string(l.text)] = true
	}
	for _, l := range lines {
		if !known[string(l)] {
			j.keep(l)
		}
	}
	return err
}

// Remove removes the files, and writes none from then on.
func (j *Journal) Remove() {
	j.file.Lock()
	defer j.file.Unlock()
	if j.dir != "" {
		_ = os.Remove(filepath.Join(j.dir, OldName))
		_ = os.Remove(filepath.Join(j.dir, Name))
		j.dir = ""
	}
}

// Err returns why lines are not in the file, or not even in memory; nil if they are.
func (j *Journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.began.IsZero() && time.Since(j.began) >= hangAfter {
		return fmt.Errorf("a write to %s has not ended since %s: repair its disk", Name, j.began.Format(time.RFC3339))
	}
	return j.err
}

// sink is the reader of the queue.
type sink Journal

// Write implements io.Writer. It never fails: lines that are not in the file are in memory.
func (s *sink) Write(text []byte) (int, error) {
	j := (*Journal)(s)
	j.file.Lock()
	defer j.file.Unlock()
	var kept [][]byte
	j.mu.Lock()
	for l := range bytes.Lines(text) {
		if l = bytes.Clone(l); len(l) > lineLimit {
			l = shortened(l)
		}
		if j.keep(l) {
			kept = append(kept, l)
		}
	}
	j.mu.Unlock()
	for _, l := range kept {
		j.store(l)
	}
	return len(text), nil
}

// store appends a line to the file, if there is one. j.file must be held.
func (j *Journal) store(text []byte) {
	if j.dir == "" {
		return
	}
	j.mu.Lock()
	j.began = time.Now()
	j.mu.Unlock()
	err := j.append(text)
	j.mu.Lock()
	j.began, j.err = time.Time{}, err
	j.mu.Unlock()
}

// sameClock bounds the time by which lines of several goroutines and processes may come out of
// order. A line that is earlier by more was written after the wall clock had stepped back.
const sameClock = time.Second

// keep keeps a line in memory. It is false for a line that is not whole: its writer was killed. Its
// time is later than that of the line before, unless the clock has stepped back: then later lines
// have the times of the new clock. j.mu must be held.
func (j *Journal) keep(text []byte) bool {
	l, ok := parse(text)
	if !ok {
		return false
	}
	if n := len(j.lines); n > 0 {
		if ahead := j.lines[n-1].at.Sub(l.at); ahead >= 0 && ahead < sameClock {
			l.at = j.lines[n-1].at.Add(1)
		}
	}
	j.lines, j.bytes = append(j.lines, l), j.bytes+len(text)
	if j.bytes > 2*fileLimit { // an eighth at once, because thin looks at all lines
		j.lines, j.bytes = thin(j.lines, 2*fileLimit/8*7)
	}
	return true
}

// parse returns a line of a file; ok is false for one that is not whole.
func parse(text []byte) (l line, ok bool) {
	var head struct {
		Time    time.Time `json:"time"`
		Message string    `json:"msg"`
	}
	if !bytes.HasSuffix(text, []byte("\n")) || json.Unmarshal(text, &head) != nil {
		return l, false
	}
	return line{head.Time, head.Message, text}, true
}

// thin removes the oldest lines of messages that have more than their share of limit bytes, until
// all lines have limit bytes at most. It returns the other lines and their bytes.
func thin(list []line, limit int) (left []line, size int) {
	of := map[string]int{} // bytes
	for _, l := range list {
		of[l.message] += len(l.text)
		size += len(l.text)
	}
	share, room := limit, limit
	sizes := slices.Sorted(maps.Values(of))
	for i, n := range sizes {
		if share = room / (len(sizes) - i); n > share {
			break
		}
		room -= n
	}
	left = slices.DeleteFunc(list, func(l line) bool {
		if size <= limit || of[l.message] <= share {
			return false
		}
		of[l.message] -= len(l.text)
		size -= len(l.text)
		return true
	})
	return left, size
}

// append appends a line to the file; j.file must be held. It opens the file each time: another
// process may have renamed it, and events are rare.
func (j *Journal) append(text []byte) error {
	path := filepath.Join(j.dir, Name)
	f, err := trusted.OpenState(path, os.O_RDWR|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return err
	}
	size, err := f.Seek(0, 2)
	if err == nil && size > 0 {
		last := make([]byte, 1)
		if _, err = f.ReadAt(last, size-1); err == nil && last[0] != '\n' {
			text = append([]byte("\n"), text...)
		}
	}
	if err == nil {
		_, err = f.Write(text)
	}
	if err = errors.Join(err, f.Close()); err == nil && size+int64(len(text)) > fileLimit {
		if err = j.rotate(); err != nil { // the disk may be full
			err = errors.Join(err, os.Rename(path, filepath.Join(j.dir, OldName)))
		}
	}
	return err
}

// rotate empties the first file, and gives the second one the lines of both that thin leaves. It
// reads the files, because another process may have written to them.
func (j *Journal) rotate() error {
	lines, err := readFiles(j.dir)
	if err != nil {
		return err
	}
	var list []line
	for _, text := range lines {
		if l, ok := parse(text); ok {
			list = append(list, l)
		}
	}
	list, size := thin(list, fileLimit)
	text := make([]byte, 0, size)
	for _, l := range list {
		text = append(text, l.text...)
	}
	if err := trusted.WriteState(filepath.Join(j.dir, OldName), text); err != nil {
		return err
	}
	return os.Remove(filepath.Join(j.dir, Name))
}

// shortened returns a line without its attributes, and with the beginning of its message.
func shortened(text []byte) []byte {
	var l struct {
		Time    time.Time `json:"time"`
		Level   string    `json:"level"`
		Message string    `json:"msg"`
		Bytes   int       `json:"omittedBytes"`
	}
	if json.Unmarshal(text, &l) != nil {
		return nil
	}
	l.Bytes = len(text)
	l.Message = string(bytes.ToValidUTF8([]byte(l.Message[:min(len(l.Message), lineLimit/8)]), nil))
	short, err := json.Marshal(&l)
	if err != nil {
		return nil
	}
	return append(short, '\n')
}

// Entry is an event.
type Entry struct {
	// Time identifies the entry. It is later than the time of the entry before, unless the wall
	// clock has stepped back.
	Time    time.Time
	Level   string // INFO, WARN, ERROR
	Message string
	Details map[string]string // the line's attributes
}

// Since returns the entries that came after the entry with a time, in their order. If there is no
// such entry, it returns all that have a later time.
func (j *Journal) Since(t time.Time) []Entry {
	j.mu.Lock()
	lines := slices.Clone(j.lines)
	j.mu.Unlock()
	at := len(lines) - 1
	for at >= 0 && !lines[at].at.Equal(t) {
		at--
	}
	if lines = lines[at+1:]; at < 0 {
		lines = slices.DeleteFunc(lines, func(l line) bool { return !l.at.After(t) })
	}
	list := make([]Entry, 0, len(lines))
	for _, l := range lines {
		var fields map[string]any
		d := json.NewDecoder(bytes.NewReader(l.text))
		d.UseNumber()
		if d.Decode(&fields) != nil { // keep has decoded its time
			continue
		}
		e := Entry{Time: l.at, Level: fmt.Sprint(cmp.Or(fields[slog.LevelKey], any(""))),
			Message: fmt.Sprint(cmp.Or(fields[slog.MessageKey], any("")))}
		for _, key := range []string{slog.TimeKey, slog.LevelKey, slog.MessageKey} {
			delete(fields, key)
		}
		for key, v := range fields {
			if e.Details == nil {
				e.Details = make(map[string]string, len(fields))
			}
			e.Details[key] = detail(v)
		}
		list = append(list, e)
	}
	return list
}

// detail prints an attribute: text as it is, lists and groups as JSON.
func detail(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case map[string]any, []any:
		text, _ := json.Marshal(v) // it was JSON
		return string(text)
	}
	return fmt.Sprint(v)
}

// Tee returns a handler that passes all records to log, and records of level info and above to the
// journal, too.
func Tee(log slog.Handler, j *Journal) slog.Handler {
	return tee{log, logs.NewHandler(j.writer, logs.JSON, slog.LevelInfo)}
}

type tee struct{ log, journal slog.Handler }

// Enabled implements slog.Handler.
func (t tee) Enabled(ctx context.Context, level slog.Level) bool {
	return t.log.Enabled(ctx, level) || t.journal.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (t tee) Handle(ctx context.Context, r slog.Record) error {
	var errs [2]error
	if t.log.Enabled(ctx, r.Level) {
		errs[0] = t.log.Handle(ctx, r)
	}
	if t.journal.Enabled(ctx, r.Level) {
		errs[1] = t.journal.Handle(ctx, readable(r))
	}
	return errors.Join(errs[:]...)
}

// readable returns a record whose durations are texts: JSON has them as nanoseconds.
func readable(r slog.Record) slog.Record {
	out := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		out.AddAttrs(a)
		return true
	})
	return out
}

// WithAttrs implements slog.Handler.
func (t tee) WithAttrs(attrs []slog.Attr) slog.Handler {
	return tee{t.log.WithAttrs(attrs), t.journal.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (t tee) WithGroup(name string) slog.Handler {
	return tee{t.log.WithGroup(name), t.journal.WithGroup(name)}
}
