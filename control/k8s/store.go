package k8s

import (
	"fmt"
	"runtime/debug"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

// store is the store of client-go's Reflector. It has the version of each object that was passed
// on. Only the Reflector's goroutine uses it.
type store struct {
	from objects.Source
	// apply passes on changes, all at once.
	apply func(objects.Source, []change)
	// changed is called after each change, with the number of objects and newest; listed: it was a
	// list.
	changed func(objects int, version uint64, listed bool)

	known map[objects.ObjectID]uint64 // resource versions; 0 where it is no number
	// newest is the version up to which all events were received: an unknown object of an older
	// version has been deleted since.
	newest uint64
}

var _ cache.TransformingStore = (*store)(nil)

// change is the new version of an object, or nil for a deleted one.
type change struct {
	id     objects.ObjectID
	object runtime.Object
	// bad is why the new version cannot be used; "" if it can.
	bad string
}

func newStore(from objects.Source) *store {
	return &store{from: from, known: map[objects.ObjectID]uint64{}}
}

// Transformer implements cache.TransformingStore.
func (s *store) Transformer() cache.TransformFunc { return trim }

// Add implements cache.ReflectorStore.
func (s *store) Add(object any) error { return s.set(object) }

// Update implements cache.ReflectorStore.
func (s *store) Update(object any) error { return s.set(object) }

// Resync implements cache.ReflectorStore; nothing calls it.
func (s *store) Resync() error { return nil }

func (s *store) set(object any) error {
	id, text, ok := idOf(object)
	if !ok {
		return fmt.Errorf("%v: %T is no object of this kind", s.from, object)
	}
	version := number(text)
	if s.stale(id, version) {
		return nil
	}
	s.known[id], s.newest = version, max(s.newest, version)
	s.apply(s.from, []change{{id: id, object: object.(runtime.Object)}})
	s.changed(len(s.known), s.newest, false)
	return nil
}

// Delete implements cache.ReflectorStore.
func (s *store) Delete(object any) error {
	if d, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return s.deleteUnseen(d)
	}
	id, text, ok := idOf(object)
	if !ok {
		return fmt.Errorf("%v: %T is no object of this kind", s.from, object)
	}
	version := number(text)
	if before, known := s.known[id]; !known || version != 0 && version < before {
		return nil
	}
	s.newest = max(s.newest, version)
	s.forget(id)
	return nil
}

// deleteUnseen deletes an object whose last version was not received.
func (s *store) deleteUnseen(d cache.DeletedFinalStateUnknown) error {
	name, err := cache.ParseObjectName(d.Key)
	if err != nil {
		return fmt.Errorf("%v: deletion of %q: %w", s.from, d.Key, err)
	}
	for id := range s.known {
		if id.Namespace == name.Namespace && id.Name == name.Name {
			s.forget(id)
			return nil
		}
	}
	return nil
}

func (s *store) forget(id objects.ObjectID) {
	delete(s.known, id)
	s.apply(s.from, []change{{id: id}})
	s.changed(len(s.known), s.newest, false)
}

// forgetVersions makes the next list pass on every object again.
func (s *store) forgetVersions() {
	for id := range s.known {
		s.known[id] = 0
	}
}

// stale reports whether a version was read before, or its object deleted since.
func (s *store) stale(id objects.ObjectID, version uint64) bool {
	if version == 0 {
		return false
	}
	if before, known := s.known[id]; known {
		return version <= before
	}
	return version <= s.newest
}

// Replace implements cache.ReflectorStore: list is all there is.
func (s *store) Replace(list []any, version string) error {
	now := make(map[objects.ObjectID]uint64, len(list))
	var changes []change
	for _, object := range list {
		id, text, ok := idOf(object)
		if !ok {
			return fmt.Errorf("%v: %T in a list is no object of this kind", s.from, object)
		}
		v := number(text)
		if before, known := s.known[id]; !known || v == 0 || v != before {
			changes = append(changes, change{id: id, object: object.(runtime.Object)})
		}
		now[id] = v
	}
	for id := range s.known {
		if _, there := now[id]; !there {
			changes = append(changes, change{id: id})
		}
	}
	s.known, s.newest = now, number(version)
	if len(changes) > 0 {
		s.apply(s.from, changes)
	}
	s.changed(len(s.known), s.newest, true)
	return nil
}

// number parses a resource version. Versions of one resource of one API server can be compared as
// numbers (KEP-5504); 0 stands for one that is not a number.
func number(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// add puts a change into a batch. A panic over its object makes that object malformed.
func add(b *tracker.Batch, from objects.Source, c *change) {
	if c.object != nil {
		upsert(b, from, c)
	}
	switch {
	case c.bad != "":
		b.Malformed(from, c.id, "", c.bad)
	case c.object == nil:
		b.Delete(from, c.id)
	}
}

// upsert sets c.bad if Batch.Upsert panics over the object.
func upsert(b *tracker.Batch, from objects.Source, c *change) {
	defer func() {
		if p := recover(); p != nil {
			c.bad = fmt.Sprintf("reading it failed: %v; this is a bug of Sluice's, at %s", p, firstFrame(debug.Stack()))
		}
	}()
	b.Upsert(from, c.object)
}
