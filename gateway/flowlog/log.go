package flowlog

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/internal/boottime"
)

// Interval is the time between two writes. A process that is killed loses the lines of this time.
const Interval = 10 * time.Millisecond

// retryAfter is the time between two attempts to open a file that cannot be opened. If a write has
// not ended after hangAfter, the disk hangs, which Problem reports.
const (
	retryAfter = time.Second
	hangAfter  = 5 * time.Second
)

// Config has the parts of the gateway that a Log needs.
type Config struct {
	Directory string
	MaxBytes  int64 // of all files
	Events    *flowtable.Log
	Services  *services.Handle
	Log       *slog.Logger
}

// Counts are the numbers of lines since the start.
type Counts struct{ Written, Lost uint64 }

// Log writes the flow log. Run does all work; the other methods are safe for any goroutine.
type Log struct {
	c     Config
	files files
	code  encoder
	lines []byte // to write
	count uint64 // lines in it

	opened bool   // the log has a line Open
	noted  uint64 // number of lost lines that are noted in the log, by lines Lost

	mu    sync.Mutex
	drops []Record // to write
	n     Counts   // without events for which the rings had no room
	err   error    // of the last write; nil if it succeeded
	since time.Time
	retry time.Time // the earliest time of the next attempt
	began time.Time // of the write in progress; zero: there is none
}

// New returns a Log that writes nothing before Run.
func New(c Config) *Log {
	return &Log{c: c, files: files{
		directory: c.Directory, size: min(c.MaxBytes/filesAtLeast, largestFile), max: c.MaxBytes,
	}}
}

// Run writes the log until ctx is done, and then the remaining events. It does not wait for a file
// that is being compressed: that file stays unchanged, and the next process compresses it.
func (l *Log) Run(ctx context.Context) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		l.drain()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	l.files.ending.Store(true)
	l.drain()
	l.files.close()
}

// drain writes the events in the rings.
func (l *Log) drain() {
	now := time.Now()
	l.code.offset = boottime.Offset()
	if l.code.services = l.c.Services.Load(); l.code.services == nil {
		l.code.services = &services.Snapshot{}
	}
	l.notes(now)
	l.takeDrops()
	l.c.Events.Read(func(e *flowtable.Event) {
		l.lines = l.code.event(l.lines, e)
		if l.count++; len(l.lines) >= chunk {
			l.flush(now)
		}
	})
	l.flush(now)
}

// maxDrops bounds the lines of dropped packets that wait to be written.
const maxDrops = 1 << 12

// Drops writes lines of dropped packets. Safe for any goroutine.
func (l *Log) Drops(list []Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(list), maxDrops-len(l.drops))
	l.drops = append(l.drops, list[:n]...)
	l.n.Lost += uint64(len(list) - n)
}

// takeDrops encodes the lines of Drops.
func (l *Log) takeDrops() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.drops {
		r := &l.drops[i]
		r.Event, r.Time = Drop, r.Time.UTC().Truncate(time.Microsecond)
		line, err := json.Marshal(r)
		if err != nil {
			continue // no field of a Record fails
		}
		l.lines = append(append(l.lines, line...), '\n')
		l.count++
	}
	l.drops = l.drops[:0]
}

// notes writes the line Open, once, and a line Lost if more lines are lost.
func (l *Log) notes(now time.Time) {
	if !l.opened && l.write(note(nil, now, Open, 0), now) == 1 {
		l.opened = true
	}
	if lost := l.Counts().Lost; lost != l.noted && l.write(note(nil, now, Lost, lost-l.noted), now) == 1 {
		l.noted = lost
	}
}

// chunk is the number of bytes that one system call writes.
const chunk = 1 << 18

// flush writes the lines. It discards lines that cannot be written, so that there is room for
// further events.
func (l *Log) flush(now time.Time) {
	if l.count == 0 {
		return
	}
	written := uint64(l.write(l.lines, now))
	l.mu.Lock()
	l.n.Written += written
	l.n.Lost += l.count - written
	l.mu.Unlock()
	l.lines, l.count = l.lines[:0], 0
}

// write writes lines, and returns how many it has written. After an error it makes no further
// attempt until retryAfter has passed.
func (l *Log) write(lines []byte, now time.Time) (written int) {
	l.mu.Lock()
	wait := l.err != nil && now.Before(l.retry)
	if !wait {
		l.began = time.Now()
	}
	l.mu.Unlock()
	if wait {
		return 0
	}
	written, err := l.files.write(lines, now)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began = time.Time{}
	switch {
	case err != nil:
		if l.err == nil {
			l.since = now
			l.c.Log.Warn("the flow log cannot be written: its lines are lost until it can", "directory",
				l.c.Directory, "error", err)
		}
		l.retry = now.Add(retryAfter)
	case l.err != nil:
		l.c.Log.Info("the flow log is written again", "directory", l.c.Directory, "lostLines", l.n.Lost)
	}
	l.err = err
	return written
}

// Counts returns the numbers of lines. A nil Log has none.
func (l *Log) Counts() (n Counts) {
	if l == nil {
		return n
	}
	l.mu.Lock()
	n = l.n
	l.mu.Unlock()
	n.Lost += l.c.Events.Lost()
	return n
}

// Directory returns the directory of the files.
func (l *Log) Directory() string { return l.c.Directory }

// Problem returns the reason that lines are or were lost; "" if no line is lost.
func (l *Log) Problem() string {
	if l == nil {
		return ""
	}
	lost := l.Counts().Lost
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.began.IsZero() && time.Since(l.began) >= hangAfter:
		return fmt.Sprintf("the flow log hangs: a write to %s has not ended since %s; %d lines are lost; once memory "+
			"is full, all further lines are lost too. Repair the disk", l.c.Directory, l.began.Format(time.RFC3339),
			lost)
	case l.err != nil:
		return fmt.Sprintf("the flow log cannot be written since %s: %v; %d lines are lost. Make room, or let the "+
			"daemon write to flowLog.directory", l.since.Format(time.RFC3339), l.err, lost)
	case lost > 0:
		return fmt.Sprintf("%d lines of the flow log are lost since the start, because it could not be written or "+
			"more flows began and ended than it takes; its lines \"lost\" say when", lost)
	}
	return ""
}
