package journal

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/logs"
)

// logger returns a logger that writes text of level warn and above to the buffer.
func logger(j *Journal) (*slog.Logger, *bytes.Buffer) {
	var out bytes.Buffer
	return slog.New(Tee(logs.NewHandler(&out, logs.Text, slog.LevelWarn), j)), &out
}

func messages(list []Entry) (all string) {
	for i := range list {
		all += list[i].Message + "\n"
	}
	return all
}

// TestEvents: a line of level info and above is an event with its attributes, whatever the log's
// level is.
func TestEvents(t *testing.T) {
	j := New()
	log, out := logger(j)
	began := time.Now()
	log.Debug("nothing")
	log.With("uid", 7).Info("client denied", "client", "192.0.2.1", "flows", 3,
		"took", 90*time.Second, "why", errors.New("a \"reason\"\n"))
	log.WithGroup("of").Warn("more", "list", []string{"a", "b"})
	if text := out.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "msg=more") {
		t.Errorf("the log has %q, want the warning", text)
	}
	list := j.Since(began)
	if len(list) != 2 || list[0].Message != "client denied" || list[0].Level != "INFO" || list[1].Level != "WARN" {
		t.Fatalf("%+v", list)
	}
	for key, want := range map[string]string{"uid": "7", "client": "192.0.2.1", "flows": "3",
		"took": "1m30s", "why": "a \"reason\"\n"} {
		if got := list[0].Details[key]; got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if got := list[1].Details["of"]; got != `{"list":["a","b"]}` {
		t.Errorf("a group is %s", got)
	}
	if rest := j.Since(list[0].Time); len(rest) != 1 || rest[0].Message != "more" {
		t.Errorf("after the first: %+v", rest)
	}
}

// TestNextProcess: the next process has the events of the ones before and its own, also those from
// before Own, and without the line that was being written when a process was killed.
func TestNextProcess(t *testing.T) {
	dir := t.TempDir()
	want := ""
	for i := range 4 {
		j := New()
		j.Queue()
		log, _ := logger(j)
		log.Info(fmt.Sprintf("%d waits", i))
		j.Flush(time.Minute)
		if err := j.Own(dir); err != nil {
			t.Fatal(err)
		}
		log.Info(fmt.Sprintf("%d owns", i))
		j.Flush(time.Minute)
		want += fmt.Sprintf("%d waits\n%d owns\n", i, i)
		list := j.Since(time.Time{})
		if got := messages(list); got != want || j.Err() != nil {
			t.Errorf("process %d: %q, want %q; %v", i, got, want, j.Err())
		}
		if !slices.IsSortedFunc(list, func(a, b Entry) int { return a.Time.Compare(b.Time) }) {
			t.Errorf("process %d: times %v", i, list)
		}
		f, err := os.OpenFile(filepath.Join(dir, Name), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(`{"time":"2026-11-29T00:00:00Z","msg":"to`); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
}

// TestClockStepsBack: after a clock that was ahead has stepped back, events have the times of the
// right one, also in the next process. A reader that follows from the last event gets the later
// events. A reader that gives a time gets the events after it.
func TestClockStepsBack(t *testing.T) {
	dir := t.TempDir()
	right := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	times := []time.Time{right.AddDate(1, 0, 0), right, right.Add(time.Minute),
		right.Add(time.Minute - 100*time.Millisecond)} // the last: of another goroutine
	want := slices.Clone(times)
	want[3] = times[2].Add(1)
	for process := range 2 {
		j := New()
		log, _ := logger(j)
		if err := j.Own(dir); err != nil {
			t.Fatal(err)
		}
		for i, at := range times {
			if process == 0 {
				r := slog.NewRecord(at, slog.LevelInfo, fmt.Sprint(i), 0)
				if err := log.Handler().Handle(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
		}
		all := j.Since(time.Time{})
		for i, e := range all {
			if len(all) != len(want) || !e.Time.Equal(want[i]) {
				t.Errorf("process %d: %d events, event %d is of %v, want %v", process, len(all), i, e.Time, want)
			}
			if rest := j.Since(e.Time); len(rest) != len(all)-i-1 {
				t.Errorf("process %d: %d events follow event %d", process, len(rest), i)
			}
		}
		if got := messages(j.Since(right.Add(30 * time.Second))); got != "0\n2\n3\n" {
			t.Errorf("process %d: since a time %q", process, got)
		}
	}
}

// TestLateLines: the journal has the lines that an earlier process wrote after Own, once, and after
// its end.
func TestLateLines(t *testing.T) {
	dir := t.TempDir()
	first, second := New(), New()
	log, _ := logger(first)
	next, _ := logger(second)
	if err := second.ReadLate(); err != nil {
		t.Error(err)
	}
	for i, j := range []*Journal{first, second} {
		if err := j.Own(dir); err != nil {
			t.Fatal(err)
		}
		[]*slog.Logger{log, next}[i].Info(fmt.Sprintf("%d owns", i))
	}
	log.Info("handed over")
	next.Info("goes on")
	for range 2 {
		if err := second.ReadLate(); err != nil {
			t.Error(err)
		}
		if got := messages(second.Since(time.Time{})); got != "0 owns\n1 owns\ngoes on\nhanded over\n" {
			t.Errorf("events %q", got)
		}
	}
}

// TestBounds: files and memory are bounded, and have the newest events; so does a line.
func TestBounds(t *testing.T) {
	dir := t.TempDir()
	j := New()
	log, _ := logger(j)
	if err := j.Own(dir); err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		log.Info(fmt.Sprint(i), "padding", strings.Repeat("x", 1000))
	}
	log.Info("long", "padding", strings.Repeat("x", 1<<20))
	next := New()
	if err := next.Own(dir); err != nil {
		t.Fatal(err)
	}
	for name, j := range map[string]*Journal{"the process": j, "the next one": next} {
		list := j.Since(time.Time{})
		last := list[len(list)-1]
		if len(list) < 400 || len(list) > 1100 || last.Message != "long" || last.Details["omittedBytes"] == "" ||
			list[len(list)-2].Message != "2999" {
			t.Errorf("%s has %d events, the last ones %q", name, len(list), messages(list[len(list)-2:]))
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 {
		t.Errorf("files %v, %v: want two", files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Size() > fileLimit+lineLimit {
			t.Errorf("%s has %d bytes: %v", f.Name(), info.Size(), err)
		}
	}
}

// TestOftenDisplacesItself: a message that comes often, as a tenant can cause it, displaces no
// other, in the process and in the next one.
func TestOftenDisplacesItself(t *testing.T) {
	dir := t.TempDir()
	j := New()
	log, _ := logger(j)
	if err := j.Own(dir); err != nil {
		t.Fatal(err)
	}
	log.Info("client denied by the operator")
	for i := range 3000 {
		log.Info("endpoint", "number", i, "padding", strings.Repeat("x", 1000))
		if i == 1500 {
			log.Info("handed over")
		}
	}
	next := New()
	if err := next.Own(dir); err != nil {
		t.Fatal(err)
	}
	for name, j := range map[string]*Journal{"the process": j, "the next one": next} {
		list := j.Since(time.Time{})
		got := messages(list)
		if !strings.HasPrefix(got, "client denied by the operator\n") || strings.Count(got, "handed over\n") != 1 ||
			len(list) < 400 || list[len(list)-1].Details["number"] != "2999" {
			t.Errorf("%s has %d events, the first %q, the last %v", name, len(list), list[0].Message,
				list[len(list)-1])
		}
		if !slices.IsSortedFunc(list, func(a, b Entry) int { return a.Time.Compare(b.Time) }) {
			t.Errorf("%s: times are not in order", name)
		}
	}
}

// TestNoFile: without a writable file events are in memory, and the error is known until a line is
// written again. A file that others may write is not read.
func TestNoFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, Name), []byte(`{"time":"2026-11-29T00:00:00Z","msg":"forged"}`+"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, Name), 0o602); err != nil {
		t.Fatal(err)
	}
	j := New()
	log, _ := logger(j)
	if err := j.Own(dir); err == nil {
		t.Error("a file that others may write was read")
	}
	log.Info("here")
	if got := messages(j.Since(time.Time{})); got != "here\n" || j.Err() == nil {
		t.Errorf("%q, %v", got, j.Err())
	}
	if err := os.Remove(filepath.Join(dir, Name)); err != nil {
		t.Fatal(err)
	}
	log.Info("again")
	if got := messages(j.Since(time.Time{})); got != "here\nagain\n" || j.Err() != nil {
		t.Errorf("%q, %v", got, j.Err())
	}
}

// TestHangingFile: while a write to the file hangs, lines are kept and can be read, and the error
// is known.
func TestHangingFile(t *testing.T) {
	j := New()
	j.Queue()
	log, _ := logger(j)
	if err := j.Own(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	log.Info("before")
	j.Flush(time.Minute)
	j.file.Lock() // as a write holds it
	j.mu.Lock()
	j.began = time.Now().Add(-hangAfter)
	j.mu.Unlock()
	answered := make(chan string)
	go func() { answered <- fmt.Sprint(messages(j.Since(time.Time{})), j.Err()) }()
	select {
	case got := <-answered:
		if !strings.HasPrefix(got, "before\n") || !strings.Contains(got, "has not ended since") {
			t.Errorf("%q", got)
		}
	case <-time.After(10 * time.Second):
		t.Error("no answer")
	}
	j.file.Unlock()
	log.Info("after")
	if j.Flush(time.Minute); j.Err() != nil || messages(j.Since(time.Time{})) != "before\nafter\n" {
		t.Errorf("%q, %v", messages(j.Since(time.Time{})), j.Err())
	}
}
