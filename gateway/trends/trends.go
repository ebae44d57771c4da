// Package trends detects changes by samples of counters and states: drops that begin and end,
// tables that fill, loops that stall. It logs each change once, however often a counter moves.
package trends

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"
)

// Sample is the state of a gateway at a time.
type Sample struct {
	Now time.Time
	// Drops are the dropped packets by reason, since the start.
	Drops map[string]uint64
	// Fill has the used and the possible entries of bounded tables by name.
	Fill map[string]Fill
	// Stalled names the workers and loops that make no progress.
	Stalled []string
}

// Fill is the use of a table.
type Fill struct{ Used, Capacity uint64 }

// percent returns the used share.
func (f Fill) percent() int {
	if f.Capacity == 0 {
		return 0
	}
	return int(min(f.Used, f.Capacity) * 100 / f.Capacity)
}

// quietTime is how long no packet is dropped for a reason until its drops have ended.
const quietTime = 30 * time.Second

// levels are the shares in percent that are logged. The use has fallen below a level when it is
// fallBelow less.
var levels = [...]int{60, 70, 90}

const fallBelow = 5

// Watch compares samples. It is not safe for concurrent use.
type Watch struct {
	log     *slog.Logger
	quiet   []string // reasons that are not logged
	began   bool
	drops   map[string]*drops
	fill    map[string]int // the level that was logged last; 0: none
	stalled map[string]time.Time
}

// drops are the drops of a reason.
type drops struct {
	total       uint64
	since, last time.Time // of drops that have not ended; since is zero if they have
	before      uint64    // total when they began
}

// New returns a Watch that logs no drops for the reasons in quiet.
func New(log *slog.Logger, quiet ...string) *Watch {
	return &Watch{log: log, quiet: quiet, drops: map[string]*drops{}, fill: map[string]int{},
		stalled: map[string]time.Time{}}
}

// Look logs the differences from the samples before. Drops of before the first sample have not
// begun.
func (w *Watch) Look(s *Sample) {
	for _, reason := range slices.Sorted(maps.Keys(s.Drops)) {
		w.lookDrops(s, reason)
	}
	for _, table := range slices.Sorted(maps.Keys(s.Fill)) {
		w.lookFill(table, s.Fill[table])
	}
	w.lookStalled(s)
	w.began = true
}

func (w *Watch) lookDrops(s *Sample, reason string) {
	d, total := w.drops[reason], s.Drops[reason]
	if d == nil {
		d = new(drops)
		if !w.began {
			d.total = total
		}
		w.drops[reason] = d
	}
	grown := total > d.total
	switch {
	case slices.Contains(w.quiet, reason):
	case grown && d.since.IsZero():
		d.since, d.last, d.before = s.Now, s.Now, d.total
		w.log.Info("packets are dropped", "reason", reason, "packets", total-d.total)
	case grown:
		d.last = s.Now
	case !d.since.IsZero() && s.Now.Sub(d.last) >= quietTime:
		w.log.Info("packets are no longer dropped", "reason", reason, "packets", total-d.before,
			"lasted", d.last.Sub(d.since).Round(time.Second))
		d.since = time.Time{}
	}
	d.total = total
}

func (w *Watch) lookFill(table string, f Fill) {
	now, before := 0, w.fill[table]
	for _, l := range levels {
		if f.percent() >= l || before >= l && f.percent() > l-fallBelow {
			now = l
		}
	}
	if now == before {
		return
	}
	w.fill[table] = now
	attributes := []any{"table", table, "used", f.Used, "capacity", f.Capacity}
	switch {
	case now > before && now == levels[len(levels)-1]:
		w.log.Warn(fmt.Sprintf("table is filled to %d percent", now), attributes...)
	case now > before:
		w.log.Info(fmt.Sprintf("table is filled to %d percent", now), attributes...)
	default:
		w.log.Info(fmt.Sprintf("table is filled to less than %d percent", before), attributes...)
	}
}

func (w *Watch) lookStalled(s *Sample) {
	for _, name := range s.Stalled {
		if _, known := w.stalled[name]; !known {
			w.stalled[name] = s.Now
			w.log.Error("stalled", "loop", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.stalled)) {
		if !slices.Contains(s.Stalled, name) {
			w.log.Info("no longer stalled", "loop", name, "lasted", s.Now.Sub(w.stalled[name]).Round(time.Second))
			delete(w.stalled, name)
		}
	}
}
