package tracker

import (
	"slices"
	"time"

	"sluice.dev/sluice/control/objects"
)

// Waiting counts objects by kind that were read and not yet asked for.
type Waiting struct{ Services, EndpointSlices int }

// Waiting may be called from any goroutine.
func (t *Tracker) Waiting() Waiting {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting
}

// Queued is when the oldest of what waits was read; zero if nothing waits.
func (t *Tracker) Queued() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queued
}

// note makes an object one that may have changed.
func (t *Tracker) note(id objects.ObjectID) {
	if t.dirty[id] {
		return
	}
	t.dirty[id] = true
	if t.queued.IsZero() {
		t.queued = time.Now()
	}
	switch id.Kind {
	case objects.KindService:
		t.waiting.Services++
	case objects.KindEndpointSlice:
		t.waiting.EndpointSlices++
	}
}

// keptDirty is the size up to which the map of what changed is used again. Emptying
// a map costs what it once held, and after a list of everything the next change is small.
const keptDirty = 64

func (t *Tracker) forgetDirty() {
	if len(t.dirty) > keptDirty {
		t.dirty = map[objects.ObjectID]bool{}
	} else {
		clear(t.dirty)
	}
	t.queued, t.waiting = time.Time{}, Waiting{}
}

// trigger is when the cause of a slice's version happened.
type trigger struct {
	id objects.ObjectID
	at int64 // as slice.trigger
}

// MaxTriggers bounds how many wait. It is far more than one pass takes; beyond, the
// oldest measure enough.
const MaxTriggers = 1000

// noteTrigger keeps the trigger of a slice's new version. As in kube-proxy
// (pkg/proxy/endpointschangetracker.go), what happened before we ran is none: the time
// until we saw it would be our own absence.
func (t *Tracker) noteTrigger(before, now any) {
	s, ok := now.(*objects.Slice)
	if !ok || s.Trigger <= t.started.UnixNano() || len(t.triggers) >= MaxTriggers {
		return
	}
	if b, ok := before.(*objects.Slice); ok && b.Trigger == s.Trigger {
		return
	}
	t.triggers = append(t.triggers, trigger{s.ID, s.Trigger})
}

// takeTriggers returns the triggers of slices that changed. One that went has none:
// its annotation is from its last change, not from its end.
func (t *Tracker) takeTriggers(ch *objects.Changes) (times []time.Time) {
	for _, w := range t.triggers {
		at, changed := slices.BinarySearchFunc(ch.Slices, w.id, func(c objects.Changed[*objects.Slice], id objects.ObjectID) int { return c.ID.Compare(id) })
		if changed && ch.Slices[at].Now != nil {
			times = append(times, time.Unix(0, w.at))
		}
	}
	t.triggers = t.triggers[:0]
	return times
}
