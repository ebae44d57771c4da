// Package heartbeat detects loops of a process that have stalled: a goroutine that is blocked
// cannot report that itself. Each loop records a beat at every iteration. Probes, the status, the
// pulse and the watchdog of systemd read the beats.
//
// There are two kinds of loops. One with a timer calls Beat at each iteration, and is late when the
// timer's iterations stop. One that only waits for events calls Beat when it takes an event and
// Rest before it waits for the next, and is late when one event takes too long.
package heartbeat

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds are the longest times from one beat of a loop to the next: the interval of its timer plus
// the longest work of one iteration.
type Bounds struct {
	Unready time.Duration // from then on the loop counts as stalled, and the process is not ready
	Restart time.Duration // from then on the loop asks for a restart of the process; at least Unready; 0: never
}

// DefaultBounds are the bounds of most loops. The longest known work is a hand-over, for which the
// control loop of the previous process waits 11.1 s at most (handover.DefaultTimes), and the
// compilation of a first table of 10,000 Services, which takes seconds on a busy machine. No known
// work takes a minute on any machine.
var DefaultBounds = Bounds{Unready: 15 * time.Second, Restart: time.Minute}

// FileBounds are the bounds of loops that read files. They never ask for a restart: a disk or a
// file server that does not answer would block the next process, too. That process would serve
// nothing, while this one serves the objects that it has read.
var FileBounds = Bounds{Unready: 15 * time.Second}

// Beat is the heartbeat of one loop. The methods of a nil Beat do nothing.
type Beat struct {
	name   string
	bounds Bounds
	epoch  time.Time
	last   atomic.Int64 // nanoseconds since epoch, or resting
}

const resting = -1

// Beat records that the loop makes progress. From now on the loop can be late.
func (b *Beat) Beat() {
	if b != nil {
		b.last.Store(int64(time.Since(b.epoch)))
	}
}

// Rest records that the loop waits for an event, for any time, or has ended. The loop is not late
// until the next call of Beat.
func (b *Beat) Rest() {
	if b != nil {
		b.last.Store(resting)
	}
}

// Late reports whether the loop has stalled.
func (b *Beat) Late() bool {
	if b == nil {
		return false
	}
	_, age := b.age()
	return age >= b.bounds.Unready
}

// age returns the last beat and the time since then, which is negative while the loop rests.
func (b *Beat) age() (last time.Time, age time.Duration) {
	n := b.last.Load()
	if n == resting {
		return last, -1
	}
	last = b.epoch.Add(time.Duration(n))
	return last, time.Since(last)
}

// Set holds the heartbeats of a process. Its methods may be called from any goroutine. The methods
// of a nil Set do nothing.
type Set struct {
	mu    sync.Mutex
	beats []*Beat
}

// Add adds a loop, which can be late after its first beat. A nil Set returns nil.
func (s *Set) Add(name string, bounds Bounds) *Beat {
	if s == nil {
		return nil
	}
	b := &Beat{name: name, bounds: bounds, epoch: time.Now()}
	b.last.Store(resting)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beats = append(s.beats, b)
	return b
}

// Remove removes a loop that has ended for good. A set whose loops come and go must not grow.
func (s *Set) Remove(b *Beat) {
	if s == nil || b == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beats = slices.DeleteFunc(s.beats, func(one *Beat) bool { return one == b })
}

// Late is a loop that has stalled.
type Late struct {
	Name    string
	Since   time.Time // its last beat
	Restart bool      // Bounds.Restart has passed
}

// String returns the same text as long as the loop is late.
func (l *Late) String() string {
	return fmt.Sprintf("%s: stalled since %s", l.Name, l.Since.Format(time.TimeOnly))
}

// Late lists the loops that have stalled, in the order in which they were added.
func (s *Set) Late() (list []Late) {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.beats {
		if last, age := b.age(); age >= b.bounds.Unready {
			restart := b.bounds.Restart > 0 && age >= b.bounds.Restart
			list = append(list, Late{Name: b.name, Since: last, Restart: restart})
		}
	}
	return list
}

// Unready returns why the process is not ready: the loops that have stalled.
func (s *Set) Unready() []string { return texts(s.Late(), false) }

// Dead returns why the process must be restarted: the loops that have stalled for Bounds.Restart.
func (s *Set) Dead() []string { return texts(s.Late(), true) }

func texts(late []Late, restart bool) (list []string) {
	for i := range late {
		if late[i].Restart || !restart {
			list = append(list, late[i].String())
		}
	}
	return list
}
