package control

import (
	"slices"
	"time"
)

// Changes is what differs between two moments, each object once, in a fixed
// order.
type Changes struct {
	Read     uint64 // Tracker.Read at that moment
	services []changed[*service]
	slices   []changed[*slice]
	nodes    []changed[*node]

	// For those who measure; what is compiled does not depend on it.
	queued   time.Time   // when the first of the changes was read
	triggers []time.Time // of the slices that changed, in the order they were read
}

// changed is an object's new version, or nil for one that went.
type changed[T any] struct {
	id  ObjectID
	now T
}

// Len counts the objects that changed.
func (c *Changes) Len() int { return len(c.services) + len(c.slices) + len(c.nodes) }

// State is the full desired state: the good version of every object. It is
// what changes from nothing are.
type State struct{ all Changes }

func (c *Changes) add(id ObjectID, now any) {
	switch id.Kind {
	case KindService:
		s, _ := now.(*service)
		c.services = append(c.services, changed[*service]{id, s})
	case KindEndpointSlice:
		s, _ := now.(*slice)
		c.slices = append(c.slices, changed[*slice]{id, s})
	case KindNode:
		n, _ := now.(*node)
		c.nodes = append(c.nodes, changed[*node]{id, n})
	}
}

func (c *Changes) sort() {
	slices.SortFunc(c.services, func(a, b changed[*service]) int { return a.id.Compare(b.id) })
	slices.SortFunc(c.slices, func(a, b changed[*slice]) int { return a.id.Compare(b.id) })
	slices.SortFunc(c.nodes, func(a, b changed[*node]) int { return a.id.Compare(b.id) })
}

func equalObjects(a, b any) bool {
	switch a := a.(type) {
	case *service:
		b, ok := b.(*service)
		return ok && (a == b || a.equal(b))
	case *slice:
		b, ok := b.(*slice)
		return ok && (a == b || a.equal(b))
	case *node:
		b, ok := b.(*node)
		return ok && (a == b || a.equal(b))
	}
	return a == nil && b == nil
}
