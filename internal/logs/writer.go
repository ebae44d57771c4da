package logs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// Bounds of a queue of lines: queueLimit in bytes, where each line counts its length and lineCost
// for its memory. An empty queue accepts a line that is longer.
const (
	queueLimit = 1 << 20
	lineCost   = 64
)

// FlushTimeout is how long a process that ends should wait for the reader of its log.
const FlushTimeout = time.Second

// Stderr is standard error of this process. It writes directly until Queue is called.
var Stderr = NewWriter(os.Stderr)

// Queue prepares the process to run as a daemon: writes to Stderr no longer wait for its reader,
// the standard package log writes to Stderr, and a missing reader no longer ends the process.
// Without a handler of SIGPIPE the Go runtime would end it (package os/signal, "SIGPIPE").
func Queue() {
	// Unlike an ignored signal, a handled one is not inherited by child processes.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	Stderr.Queue()
	log.SetOutput(Stderr)
}

// Writer is the output of a log. After Queue is called, Write only appends to a queue of bounded
// size, which one goroutine writes out. A full queue drops its oldest lines, so that the newest
// stay, such as the reason for the process's end. Writer counts the dropped lines and writes their
// number before the next line. Lines are written whole and in order.
type Writer struct {
	out   io.Writer
	limit int

	mu      sync.Mutex
	changed *sync.Cond // signalled when lines are queued
	queued  bool
	format  string // of the line about dropped lines
	lines   [][]byte
	bytes   int           // of lines, with lineCost for each
	began   time.Time     // start of the write in progress; zero: no write
	gap     gap           // lines that were dropped and not reported yet
	dropped uint64        // number of lines since the start
	idle    chan struct{} // closed when all lines are written; nil if no Flush waits
	torn    bool          // the last line was written in part
}

// gap counts lines that were not written.
type gap struct {
	lines uint64
	since time.Time
	err   error // of a write; nil: the queue was full
}

// NewWriter returns a Writer that writes directly to out, until Queue is called.
func NewWriter(out io.Writer) *Writer {
	w := &Writer{out: out, limit: queueLimit, format: Text}
	w.changed = sync.NewCond(&w.mu)
	return w
}

// Queue starts the queue. Further calls do nothing.
func (w *Writer) Queue() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.queued {
		w.queued = true
		go w.run()
	}
}

// Write implements io.Writer. Each call must have whole lines. With a queue it never fails.
func (w *Writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	if !w.queued {
		w.mu.Unlock()
		return w.out.Write(line)
	}
	defer w.mu.Unlock()
	if len(line) == 0 {
		return 0, nil
	}
	if cost := len(line) + lineCost; w.bytes+cost > w.limit {
		// Half of the queue at once, so that a slow reader does not get a report of each line.
		w.makeRoom(max(0, min(w.limit/2, w.limit-cost)))
	}
	w.lines = append(w.lines, bytes.Clone(line))
	w.bytes += len(line) + lineCost
	w.changed.Signal()
	return len(line), nil
}

// makeRoom drops the oldest lines until the queue has at most left bytes; w.mu is held.
func (w *Writer) makeRoom(left int) {
	for w.bytes > left {
		w.drop(w.lines[0], nil)
		w.next()
	}
}

// next removes the oldest line from the queue; w.mu is held.
func (w *Writer) next() []byte {
	line := w.lines[0]
	w.lines[0], w.lines = nil, w.lines[1:]
	w.bytes -= len(line) + lineCost
	if len(w.lines) == 0 {
		w.lines = nil
	}
	return line
}

// drop counts lines that are not written; w.mu is held. err is the error of the write, if any.
func (w *Writer) drop(lines []byte, err error) {
	n := uint64(max(1, bytes.Count(lines, []byte("\n"))))
	if w.gap.lines == 0 {
		if w.gap.since = w.began; w.began.IsZero() {
			w.gap.since = time.Now()
		}
	}
	if err != nil {
		w.gap.err = err
	}
	w.gap.lines += n
	w.dropped += n
}

// run writes out the queue. No other goroutine waits for the reader.
func (w *Writer) run() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.lines) == 0 {
			if w.idle != nil {
				close(w.idle)
				w.idle = nil
			}
			w.changed.Wait()
		}
		if w.gap.lines > 0 {
			w.report()
		}
		// The report may have taken so long that other lines were dropped.
		line := w.next()
		if err := w.put(line); err != nil {
			w.drop(line, err)
		}
	}
}

// report writes a line about the lines that were dropped; w.mu is held, except during the write.
func (w *Writer) report() {
	g, b := w.gap, bytes.Buffer{}
	why := "nobody read the log for " + time.Since(g.since).Round(time.Millisecond).String()
	if g.err != nil {
		why = g.err.Error()
	}
	r := slog.NewRecord(time.Now(), slog.LevelWarn, fmt.Sprintf("%s not written: %s", lines(g.lines), why), 0)
	_ = NewHandler(&b, w.format, slog.LevelWarn).Handle(context.Background(), r) // a Buffer never fails
	if w.put(b.Bytes()) != nil {
		return // the next report includes these lines
	}
	if w.gap.lines -= g.lines; w.gap.lines == 0 {
		w.gap = gap{}
	}
}

// put writes a line to the reader; w.mu is held, except during the write.
func (w *Writer) put(line []byte) error {
	if w.torn { // the new line must not continue the torn one
		line = append([]byte("\n"), line...)
	}
	w.began = time.Now()
	w.mu.Unlock()
	n, err := w.out.Write(line)
	w.mu.Lock()
	w.began = time.Time{}
	if n > 0 {
		w.torn = line[n-1] != '\n'
	}
	return err
}

func lines(n uint64) string {
	if n == 1 {
		return "1 line was"
	}
	return fmt.Sprintf("%d lines were", n)
}

// Flush waits until all lines are written, for within at most, and reports whether they are.
func (w *Writer) Flush(within time.Duration) bool {
	w.mu.Lock()
	if !w.queued || len(w.lines) == 0 && w.began.IsZero() {
		w.mu.Unlock()
		return true
	}
	if w.idle == nil {
		w.idle = make(chan struct{})
	}
	idle := w.idle
	w.mu.Unlock()
	select {
	case <-idle:
		return true
	case <-time.After(within):
		return false
	}
}

// Dropped returns how many lines were not written since the start.
func (w *Writer) Dropped() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dropped
}

// Dropping returns a sentence about lines that are being dropped, or "" if the last one was
// written.
func (w *Writer) Dropping() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gap.lines == 0 {
		return ""
	}
	why := "nobody reads the log (standard error)"
	if w.gap.err != nil {
		why = "the log cannot be written: " + w.gap.err.Error()
	}
	return fmt.Sprintf("%s since %s: %s dropped", why, w.gap.since.Format(time.RFC3339), lines(w.gap.lines))
}

// setFormat sets the format of the line about dropped lines.
func (w *Writer) setFormat(format string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.format = format
}
