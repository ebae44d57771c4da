package loop

import (
	"time"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/internal/heartbeat"
)

// problemLister lists the outstanding problems. A tenant can cause ten thousand problems, which
// take a tenth of a second to sort, so that another goroutine lists more than fewProblems.
type problemLister struct {
	edits   problemEdits     // of the last list
	next    time.Time        // no list is made before
	due     <-chan time.Time // wakes the loop at next if the problems changed meanwhile; or nil
	running bool             // a goroutine makes a list, which it sends to done
	done    chan *problemList
	beat    *heartbeat.Beat
}

// problemList is a list to make, and its result.
type problemList struct {
	compiled [][]objects.Problem
	began    time.Time
	took     time.Duration
	news     []objects.Problem // that the list before did not have
}

const (
	// fewProblems take less than a millisecond.
	fewProblems = 200
	// listShare: making lists takes at most one part in listShare of a processor's time.
	listShare = 20
)

// listProblems lists the problems if they changed since the last list.
func (l *Loop) listProblems() {
	p := &l.listed
	edits := l.problemEdits()
	switch now := time.Now(); {
	case edits == p.edits || p.running:
	case now.Before(p.next):
		if p.due == nil {
			p.due = time.After(p.next.Sub(now))
		}
	default:
		l.startList(false)
	}
}

// startList makes a list: at once if it is short or wait is set, otherwise on another goroutine.
func (l *Loop) startList(wait bool) {
	p := &l.listed
	list := &problemList{compiled: l.Compiler.ProblemLists(), began: time.Now()}
	p.edits = l.problemEdits()
	n := l.Tracker.ProblemCount()
	for _, problems := range list.compiled {
		n += len(problems)
	}
	if wait || n <= fewProblems {
		l.progress.list(list, l.Tracker)
		l.finishList(list)
		return
	}
	p.running = true
	go func() {
		p.beat.Beat()
		l.progress.list(list, l.Tracker)
		p.beat.Rest()
		p.done <- list
	}()
}

// finishList logs the new problems of a list.
func (l *Loop) finishList(list *problemList) {
	p := &l.listed
	p.running = false
	l.problems.write(list.news, time.Now())
	if list.took > time.Millisecond {
		p.next = list.began.Add(listShare * list.took)
	}
}

// staleProblems is closed if the compiler has stale problems.
func (l *Loop) staleProblems() <-chan struct{} {
	if l.Compiler.StaleProblems() {
		return closed
	}
	return nil
}

var closed = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// listNow returns when progress has the problems of this moment.
func (l *Loop) listNow() {
	if l.listed.running {
		l.finishList(<-l.listed.done)
	}
	for l.Compiler.StaleEndpoints() {
		l.recompile()
	}
	for l.Compiler.StaleProblems() {
		l.Compiler.RefreshProblems()
	}
	l.startList(true)
}

func (l *Loop) problemEdits() problemEdits {
	return problemEdits{l.Compiler.ProblemEdits(), l.Tracker.ProblemEdits()}
}
