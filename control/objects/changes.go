package objects

import (
	"slices"
	"time"
)

// Changes are the objects that differ between two moments, each once, in a fixed order.
type Changes struct {
	Read     uint64 // Tracker.Read at that moment
	Services []Changed[*Service]
	Slices   []Changed[*Slice]
	Nodes    []Changed[*Node]

	// For measurements only; the result of compiling does not depend on it.
	Queued   time.Time   // when the first of the changes was read
	Triggers []time.Time // of the slices that changed, in the order they were read
}

// Changed is the new version of an object; nil if the object was deleted.
type Changed[T any] struct {
	ID  ObjectID
	Now T
}

// Len counts the objects that changed.
func (c *Changes) Len() int { return len(c.Services) + len(c.Slices) + len(c.Nodes) }

// State is the full desired state, the last good version of every object: the changes from the
// empty state to it.
type State struct{ All Changes }

// Add adds a *Service, *Slice or *Node, or nil for an object that was deleted.
func (c *Changes) Add(id ObjectID, now any) {
	switch id.Kind {
	case KindService:
		s, _ := now.(*Service)
		c.Services = append(c.Services, Changed[*Service]{id, s})
	case KindEndpointSlice:
		s, _ := now.(*Slice)
		c.Slices = append(c.Slices, Changed[*Slice]{id, s})
	case KindNode:
		n, _ := now.(*Node)
		c.Nodes = append(c.Nodes, Changed[*Node]{id, n})
	}
}

// Sort sorts the objects of each kind by ID.
func (c *Changes) Sort() {
	slices.SortFunc(c.Services, func(a, b Changed[*Service]) int { return a.ID.Compare(b.ID) })
	slices.SortFunc(c.Slices, func(a, b Changed[*Slice]) int { return a.ID.Compare(b.ID) })
	slices.SortFunc(c.Nodes, func(a, b Changed[*Node]) int { return a.ID.Compare(b.ID) })
}

// Equal reports whether two objects, each a *Service, *Slice or *Node or nil, are equal in every
// field that is compiled.
func Equal(a, b any) bool {
	switch a := a.(type) {
	case *Service:
		b, ok := b.(*Service)
		return ok && (a == b || a.equal(b))
	case *Slice:
		b, ok := b.(*Slice)
		return ok && (a == b || a.equal(b))
	case *Node:
		b, ok := b.(*Node)
		return ok && (a == b || a.equal(b))
	}
	return a == nil && b == nil
}
