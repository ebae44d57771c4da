package loop

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/internal/wake"
)

// progress is the state of the loop that other goroutines may read.
type progress struct {
	mu          sync.Mutex
	applied     uint64        // Tracker.Read of the published and steered state
	at          time.Time     // when it became so
	changed     chan struct{} // closed at the next change
	problems    []objects.Problem
	closing     int   // entries that the kernel program has yet to close
	steeringErr error // of the kernel program
	check       SelfCheck
	feeds       map[objects.Source]error // by feed that was tried; nil: it has synced
}

// feed and steer record a result, and report whether it differs from the last one.
func (p *progress) feed(s objects.Source, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, tried := p.feeds[s]
	p.feeds[s] = err
	return !tried || fmt.Sprint(before) != fmt.Sprint(err)
}

// problemEdits count how often the problems of compiling and of the sources changed.
type problemEdits struct{ compiled, read uint64 }

// list makes a list of the outstanding problems. Only one goroutine may call it at a time.
func (p *progress) list(list *problemList, t *tracker.Tracker) {
	problems := t.Locate(list.compiled...)
	p.mu.Lock()
	before := p.problems
	p.problems = problems
	p.mu.Unlock()
	list.news = added(before, problems)
	list.took = time.Since(list.began)
}

// added returns the problems that a list has and an older one has not. Both are in order.
func added(before, now []objects.Problem) (news []objects.Problem) {
	i := 0
	for j := range now {
		for i < len(before) && objects.CompareProblems(before[i], now[j]) < 0 {
			i++
		}
		if i == len(before) || before[i] != now[j] {
			news = append(news, now[j])
		}
	}
	return news
}

func (p *progress) steer(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.steeringErr
	p.steeringErr = err
	return fmt.Sprint(before) != fmt.Sprint(err)
}

// Wait returns nil once everything that the sources had before the call is published, steered and
// seen by every worker; otherwise an error with the reason.
func (l *Loop) Wait(ctx context.Context) error {
	for _, f := range l.Feeds {
		if err := f.Sync(ctx); err != nil {
			return fmt.Errorf("read %v: %w", f.Source(), err)
		}
	}
	target := l.Tracker.Read()
	for {
		l.progress.mu.Lock()
		applied, steeringErr, changed := l.progress.applied, l.progress.steeringErr, l.progress.changed
		l.progress.mu.Unlock()
		if applied >= target && l.isReady() {
			return l.seen(ctx, l.Publisher.Published())
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if steeringErr != nil {
				return fmt.Errorf("%w: the kernel program refused: %w", ctx.Err(), steeringErr)
			}
			return fmt.Errorf("%w: the sources are read up to %d, published and steered up to %d", ctx.Err(), target,
				applied)
		case <-l.ended:
			return ErrEnded
		}
	}
}

// WaitListed is Wait, and also makes Status list the problems of that state.
func (l *Loop) WaitListed(ctx context.Context) error {
	if err := l.Wait(ctx); err != nil {
		return err
	}
	return l.request(ctx, func() {
		l.listNow()
		l.note()
	})
}

func (l *Loop) isReady() bool {
	select {
	case <-l.ready:
		return true
	default:
		return false
	}
}

// seenPoll is the interval of reading the workers' blocks; a batch takes far less.
const seenPoll = time.Millisecond

// seen returns when no worker uses a snapshot older than a generation.
func (l *Loop) seen(ctx context.Context, generation uint64) error {
	for l.Publisher.Oldest() < generation {
		if !wake.After(ctx, seenPoll) {
			return fmt.Errorf("%w: a worker still uses snapshot %d, not %d", ctx.Err(), l.Publisher.Oldest(),
				generation)
		}
	}
	return nil
}

// Status compares the applied state with the objects read.
type Status struct {
	// Read is the number of batches read from the sources; Applied is the number of batches that
	// are published and steered.
	Read    uint64    `json:"read"`
	Applied uint64    `json:"applied"`
	At      time.Time `json:"at,omitzero"` // when Applied became so
	// Generation is the published snapshot's; Oldest is the generation of the oldest snapshot in
	// use.
	Generation uint64 `json:"generation"`
	Oldest     uint64 `json:"oldest"`
	// SteeringError is why the kernel program does not steer by all that is published; empty if it
	// does.
	SteeringError string `json:"refusal,omitempty"`
	// Closing counts entries that the kernel program keeps open for live flows.
	Closing  int                    `json:"closing"`
	Sources  []SourceStatus         `json:"sources"`
	Objects  []tracker.ObjectStatus `json:"objects"`
	Problems []objects.Problem      `json:"problems"`
	// SelfCheck counts comparisons of the table with a freshly compiled one.
	SelfCheck SelfCheck `json:"selfCheck"`
}

// SourceStatus is one feed.
type SourceStatus struct {
	Source  objects.Source `json:"source"`
	Synced  bool           `json:"synced"`
	Error   string         `json:"error,omitempty"`
	Objects int            `json:"objects"`
	Read    uint64         `json:"read"` // the newest of its objects
	Applied bool           `json:"applied"`
}

// Status may be called from any goroutine. It lists every object, so it is too expensive for every
// scrape.
func (l *Loop) Status() *Status {
	objects := l.Tracker.ObjectStatus()
	s := &Status{Read: l.Tracker.Read(), Generation: l.Publisher.Published(), Oldest: l.Publisher.Oldest(),
		Objects: objects}
	p := &l.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Applied, s.At, s.Closing, s.Problems = p.applied, p.at, p.closing, slices.Clone(p.problems)
	s.SelfCheck = p.check
	if p.steeringErr != nil {
		s.SteeringError = p.steeringErr.Error()
	}
	for _, f := range l.Feeds {
		s.Sources = append(s.Sources, p.source(f.Source(), objects))
	}
	for i := range objects {
		objects[i].Applied = objects[i].Read <= s.Applied
	}
	return s
}

// source sums up one feed: the objects read at its place or below.
func (p *progress) source(of objects.Source, objects []tracker.ObjectStatus) SourceStatus {
	err, tried := p.feeds[of]
	s := SourceStatus{Source: of, Synced: tried && err == nil}
	if err != nil {
		s.Error = err.Error()
	}
	for _, o := range objects {
		if of.Contains(o.Source) {
			s.Objects++
			s.Read = max(s.Read, o.Read)
		}
	}
	s.Applied = s.Synced && s.Read <= p.applied
	return s
}

// Reached returns the number of batches that the Tracker has read, the number of batches that are
// published and steered, and since when; the zero time before the first snapshot. It is cheap and
// may be called from any goroutine.
func (l *Loop) Reached() (read, applied uint64, at time.Time) {
	read = l.Tracker.Read()
	l.progress.mu.Lock()
	defer l.progress.mu.Unlock()
	return read, l.progress.applied, l.progress.at
}

// SteeringError returns why the kernel program does not steer by all that is published; nil if it
// does. It may be called from any goroutine.
func (l *Loop) SteeringError() error {
	l.progress.mu.Lock()
	defer l.progress.mu.Unlock()
	return l.progress.steeringErr
}

// Problems returns all outstanding problems, which the caller must not modify, and a channel that
// is closed when they may have changed. It may be called from any goroutine.
func (l *Loop) Problems() ([]objects.Problem, <-chan struct{}) {
	l.progress.mu.Lock()
	defer l.progress.mu.Unlock()
	return l.progress.problems, l.progress.changed
}
