package control

import (
	"slices"
	"time"
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
func (t *Tracker) note(id ObjectID) {
	if t.dirty[id] {
		return
	}
	t.dirty[id] = true
	if t.queued.IsZero() {
		t.queued = time.Now()
	}
	switch id.Kind {
	case KindService:
		t.waiting.Services++
	case KindEndpointSlice:
		t.waiting.EndpointSlices++
	}
}

// keptDirty is the size up to which the map of what changed is used again. Emptying
// a map costs what it once held, and after a list of everything the next change is small.
const keptDirty = 64

func (t *Tracker) forgetDirty() {
	if len(t.dirty) > keptDirty {
		t.dirty = map[ObjectID]bool{}
	} else {
		clear(t.dirty)
	}
	t.queued, t.waiting = time.Time{}, Waiting{}
}

// trigger is when the cause of a slice's version happened.
type trigger struct {
	id ObjectID
	at int64 // as slice.trigger
}

// maxTriggers bounds how many wait. It is far more than one pass takes; beyond, the
// oldest measure enough.
const maxTriggers = 1000

// triggerTime reads the annotation that the EndpointSlice controller writes: RFC 3339
// with nanoseconds. What is no time is no trigger.
func triggerTime(annotation string) int64 {
	if annotation == "" {
		return 0
	}
	at, err := time.Parse(time.RFC3339Nano, annotation)
	if err != nil {
		return 0
	}
	return at.UnixNano()
}

// noteTrigger keeps the trigger of a slice's new version. As in kube-proxy
// (pkg/proxy/endpointschangetracker.go), what happened before we ran is none: the time
// until we saw it would be our own absence.
func (t *Tracker) noteTrigger(before, now any) {
	s, ok := now.(*slice)
	if !ok || s.trigger <= t.started.UnixNano() || len(t.triggers) >= maxTriggers {
		return
	}
	if b, ok := before.(*slice); ok && b.trigger == s.trigger {
		return
	}
	t.triggers = append(t.triggers, trigger{s.id, s.trigger})
}

// takeTriggers returns the triggers of slices that changed. One that went has none:
// its annotation is from its last change, not from its end.
func (t *Tracker) takeTriggers(ch *Changes) (times []time.Time) {
	for _, w := range t.triggers {
		at, changed := slices.BinarySearchFunc(ch.slices, w.id, func(c changed[*slice], id ObjectID) int { return c.id.Compare(id) })
		if changed && ch.slices[at].now != nil {
			times = append(times, time.Unix(0, w.at))
		}
	}
	t.triggers = t.triggers[:0]
	return times
}
