package logs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// reader is an output that blocks until goOn is closed.
type reader struct {
	goOn chan struct{}
	mu   sync.Mutex
	text bytes.Buffer
	err  error
	cut  int // bytes that a failing write writes
}

func newReader() *reader { return &reader{goOn: make(chan struct{})} }

func (r *reader) Write(p []byte) (int, error) {
	<-r.goOn
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		r.text.Write(p[:r.cut])
		return r.cut, r.err
	}
	return r.text.Write(p)
}

func (r *reader) fail(err error, cut int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err, r.cut = err, cut
}

func (r *reader) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Split(strings.TrimSuffix(r.text.String(), "\n"), "\n")
}

// within fails the test unless f returns within 5 s.
func within(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("it waits for the reader of the log")
	}
}

// TestNobodyReads: several goroutines log more than the queue holds while nobody reads. None of
// them waits; dropped lines are counted, and reported when the log is read again; the newest lines
// are whole and in order.
func TestNobodyReads(t *testing.T) {
	out := newReader()
	w := NewWriter(out)
	w.Queue()
	log := slog.New(NewHandler(w, JSON, slog.LevelInfo))
	const writers, each = 4, 5000
	within(t, func() {
		var group sync.WaitGroup
		for g := range writers {
			group.Go(func() {
				for i := range each {
					log.Info("line", "writer", g, "n", i, "filler", strings.Repeat("x", 100))
				}
			})
		}
		group.Wait()
		log.Info("line", "writer", writers, "n", 0)
	})
	if w.bytes > w.limit {
		t.Errorf("%d bytes are queued, the limit is %d", w.bytes, w.limit)
	}
	dropped := w.Dropped()
	if dropped == 0 || !strings.Contains(w.Dropping(), "nobody reads the log (standard error) since ") ||
		!strings.Contains(w.Dropping(), fmt.Sprintf(": %d lines were dropped", dropped)) {
		t.Errorf("%d lines were dropped: %q", dropped, w.Dropping())
	}
	within(t, func() {
		if w.Flush(10 * time.Millisecond) {
			t.Error("lines are written that nobody reads")
		}
	})
	close(out.goOn)
	if !w.Flush(5 * time.Second) {
		t.Fatal("lines are not written although the log is read")
	}
	// The queue has room again when the writer takes its first lines, so there may be two reports.
	reported, count, last := uint64(0), uint64(0), map[int]int{}
	want := regexp.MustCompile(`^([0-9]+) lines were not written: nobody read the log for [0-9.]+m?s$`)
	for _, text := range out.lines() {
		var line struct {
			Msg       string
			Writer, N int
		}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if line.Msg != "line" {
			report := want.FindStringSubmatch(line.Msg)
			if report == nil {
				t.Fatalf("%q, want %v", line.Msg, want)
			}
			n, _ := strconv.ParseUint(report[1], 10, 64)
			reported += n
			continue
		}
		count++
		if before, there := last[line.Writer]; there && line.N <= before {
			t.Fatalf("writer %d: line %d after %d", line.Writer, line.N, before)
		}
		last[line.Writer] = line.N
	}
	if reported != dropped || count+dropped != writers*each+1 {
		t.Errorf("%d lines written, %d dropped of %d; %d reported", count, dropped, writers*each+1, reported)
	}
	if _, there := last[writers]; !there {
		t.Error("the newest line was dropped")
	}
	if w.Dropping() != "" || w.Dropped() != dropped {
		t.Errorf("after the report: %q, %d", w.Dropping(), w.Dropped())
	}
}

// TestErrorsOfWrites: lines that the output does not accept are counted and reported with the
// error, and the text after a torn line starts a new line.
func TestErrorsOfWrites(t *testing.T) {
	out := newReader()
	close(out.goOn)
	w := NewWriter(out)
	w.Queue()
	out.fail(errors.New("no space left"), 3)
	for _, line := range []string{"first\n", "second\n"} {
		fmt.Fprint(w, line)
		w.Flush(5 * time.Second)
	}
	if got := w.Dropping(); !strings.Contains(got, "cannot be written: no space left") ||
		!strings.Contains(got, "2 lines were dropped") {
		t.Errorf("%q", got)
	}
	out.fail(nil, 0)
	fmt.Fprint(w, "third\n")
	w.Flush(5 * time.Second)
	got := out.lines()
	if n := len(got); n < 3 || !strings.Contains(got[n-2], `msg="2 lines were not written: no space left"`) ||
		got[n-1] != "third" || w.Dropped() != 2 || w.Dropping() != "" {
		t.Errorf("%q, %d dropped, %q", got, w.Dropped(), w.Dropping())
	}
}

// TestLongLine: a line that is longer than the queue is written.
func TestLongLine(t *testing.T) {
	out := newReader()
	w := NewWriter(out)
	w.Queue()
	fmt.Fprintln(w, "short")
	long := strings.Repeat("x", 2*queueLimit)
	fmt.Fprintln(w, long)
	close(out.goOn)
	w.Flush(5 * time.Second)
	if got := out.lines(); got[len(got)-1] != long {
		t.Errorf("the last of %d lines has %d bytes", len(got), len(got[len(got)-1]))
	}
}

// TestDirect: without a queue a line is written when Write returns, and errors are returned.
func TestDirect(t *testing.T) {
	out := newReader()
	close(out.goOn)
	w := NewWriter(out)
	fmt.Fprint(w, "line\n")
	if got := out.lines(); got[0] != "line" || !w.Flush(0) {
		t.Errorf("%q", got)
	}
	out.fail(errors.New("refused"), 0)
	if _, err := w.Write([]byte("line\n")); err == nil {
		t.Error("no error")
	}
}
