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

// Bounds of a queue of lines: queueLimit in bytes, in which each line counts lineCost more than its
// length for its memory. A line that alone is longer is taken into an empty queue.
const (
	queueLimit = 1 << 20
	lineCost   = 64
)

// FlushTimeout is how long a process that ends should wait for the reader of its log.
const FlushTimeout = time.Second

// Stderr is standard error of this process. It writes directly until Queue is called.
var Stderr = NewWriter(os.Stderr)

// Queue makes a daemon of the process: from here on nothing that writes to Stderr waits for its
// reader, the standard package log writes to Stderr, and a reader that is gone does not end the
// process: without the handler of SIGPIPE the Go runtime would (package os/signal, "SIGPIPE").
func Queue() {
	// Unlike an ignored signal, a handled one is not inherited by programs that are started.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	Stderr.Queue()
	log.SetOutput(Stderr)
}

// Writer is the output of a log. Once Queue is called, Write only appends to a queue of bounded
// size, which one goroutine writes out. In a full queue the oldest lines are dropped, so that the
// newest, such as the reason of the process's end, stay; Writer counts the dropped lines and
// writes how many they were before the next line. Lines are written whole and in order.
type Writer struct {
	out   io.Writer
	limit int

	mu      sync.Mutex
	changed *sync.Cond // signalled when lines come
	queued  bool
	format  string // of the line about dropped lines
	lines   [][]byte
	bytes   int           // of lines, as the limit counts them
	began   time.Time     // of the write under way; zero: there is none
	gap     gap           // lines that were dropped and not reported yet
	dropped uint64        // lines since the start
	idle    chan struct{} // closed when all lines are written; nil if nobody waits for that
	torn    bool          // the last line was written in part
}

// gap is a number of lines that were not written.
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

// Write implements io.Writer. Each call has to have whole lines. With a queue it never fails.
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

// makeRoom drops the oldest lines until those left count at most so many bytes; w.mu is held.
func (w *Writer) makeRoom(left int) {
	for w.bytes > left {
		w.drop(w.lines[0], nil)
		w.next()
	}
}

// next takes the oldest line from the queue; w.mu is held.
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

// run writes out what is queued. It is the only goroutine that waits for the reader.
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
	_ = NewHandler(&b, w.format, slog.LevelWarn).Handle(context.Background(), r) // a Buffer takes all
	if w.put(b.Bytes()) != nil {
		return // the next one counts these lines, too
	}
	if w.gap.lines -= g.lines; w.gap.lines == 0 {
		w.gap = gap{}
	}
}

// put writes a line to the reader; w.mu is held, except during the write.
func (w *Writer) put(line []byte) error {
	if w.torn { // what follows is a line of its own
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

// Flush waits until all lines are written, at most so long, and reports whether they are.
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
