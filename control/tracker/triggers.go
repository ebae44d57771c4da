package tracker

import (
	"slices"
	"time"

	"sluice.dev/sluice/control/objects"
)

// Waiting counts by kind the objects that were read and that Changes has yet to return.
type Waiting struct{ Services, EndpointSlices int }

// Waiting returns the counts. It may be called from any goroutine.
func (t *Tracker) Waiting() Waiting {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting
}

// Queued returns when the oldest waiting change was read; the zero time if none waits.
func (t *Tracker) Queued() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queued
}

// note marks an object as possibly changed.
func (t *Tracker) note(id objects.ObjectID, together bool) {
	d, waits := t.dirty[id]
	if waits {
		if together && !d.together {
			d.together = true
			t.dirty[id] = d
		}
		return
	}
	d = waitingChange{read: t.read, at: time.Now(), together: together}
	t.dirty[id] = d
	if t.queued.IsZero() {
		t.queued = d.at
	}
	t.waiting.add(id)
}

// add counts an object.
func (w *Waiting) add(id objects.ObjectID) {
	switch id.Kind {
	case objects.KindService:
		w.Services++
	case objects.KindEndpointSlice:
		w.EndpointSlices++
	}
}

// keptDirty is the size up to which the map dirty is cleared and used again. Clearing a map costs
// time in proportion to its largest size, and after a list of all objects the next change is small.
const keptDirty = 64

func (t *Tracker) forgetDirty() {
	if len(t.dirty) > keptDirty {
		t.dirty = map[objects.ObjectID]waitingChange{}
	} else {
		clear(t.dirty)
	}
	clear(t.tags)
	t.queued, t.waiting = time.Time{}, Waiting{}
}

// trigger is the Trigger of a slice's version.
type trigger struct {
	id objects.ObjectID
	at int64 // as slice.trigger
}

// MaxTriggers bounds the triggers that wait. It is far more than one pass has; further ones are not
// measured.
const MaxTriggers = 1000

// noteTrigger keeps the trigger of a slice's new version. As in kube-proxy
// (pkg/proxy/endpointschangetracker.go), triggers from before the start of the process do not
// count: they would measure the time without a process.
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

// takeTriggers returns the triggers of slices that changed, and removes the triggers of slices that
// do not wait. A deleted slice has none: its annotation describes its last change, not the
// deletion.
func (t *Tracker) takeTriggers(ch *objects.Changes) (times []time.Time) {
	var left []trigger
	for _, w := range t.triggers {
		if _, waits := t.dirty[w.id]; waits {
			left = append(left, w)
			continue
		}
		at, changed := slices.BinarySearchFunc(ch.Slices, w.id, func(c objects.Changed[*objects.Slice],
			id objects.ObjectID) int {
			return c.ID.Compare(id)
		})
		if changed && ch.Slices[at].Now != nil {
			times = append(times, time.Unix(0, w.at))
		}
	}
	t.triggers = append(t.triggers[:0], left...)
	return times
}
