package loop

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

// TestLongListDoesNotDelayTheLoop: the loop goes on while another goroutine lists many problems,
// and logs the problems that are new in the list.
func TestLongListDoesNotDelayTheLoop(t *testing.T) {
	tr := tracker.New()
	l := New(Config{Tracker: tr, Compiler: compiler.New(compiler.Config{}), Log: slog.New(slog.DiscardHandler)})
	at := objects.Source{Kind: "test"}
	report := func(n int) (all []objects.Problem) {
		for i := range n {
			all = append(all, objects.Problem{Source: at, Message: fmt.Sprintf("problem %04d", i),
				Severity: objects.Refused})
		}
		var b tracker.Batch
		b.Report(at, all)
		tr.Apply(&b)
		return all
	}
	for _, n := range []int{fewProblems + 1, fewProblems + 3} {
		before := l.progress.problems
		all := report(n)
		l.progress.mu.Lock() // the list cannot end
		returned := make(chan struct{})
		go func() {
			l.listed.next = time.Time{}
			l.listProblems()
			l.listProblems() // does not start another one
			close(returned)
		}()
		select {
		case <-returned:
		case <-time.After(time.Minute):
			t.Fatal("the loop waits for a list")
		}
		l.progress.mu.Unlock()
		list := <-l.listed.done
		l.finishList(list)
		if !slices.Equal(l.progress.problems, all) {
			t.Errorf("%d problems are listed, want %d", len(l.progress.problems), n)
		}
		if want := all[len(before):]; !slices.Equal(list.news, want) {
			t.Errorf("%d of %d problems are new, want %d", len(list.news), n, len(want))
		}
	}
}
