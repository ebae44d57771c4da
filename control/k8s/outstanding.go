package k8s

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/internal/eventlimit"
)

// Bounds of the memory for Events, and of how often one is written.
const (
	eventMemory        = eventlimit.Memory
	maxEvents          = eventlimit.Most
	maxNamespaceEvents = eventlimit.MostOfNamespace
	eventMinInterval   = eventlimit.MinInterval
	eventMaxInterval   = eventlimit.MaxInterval
	eventRetry         = eventlimit.Retry
)

// about identifies an Event. The text is not part of the identity: with numbers or times in its
// message a Problem would be a new Event each time.
type about struct {
	object objects.ObjectID
	field  string
	reason objects.Reason
}

// author is a namespace that has series. Objects without one have one together.
type author struct {
	series int
	wrote  time.Time // the last Event about it, or the last refusal of one
}

// series is one Event and the Problems it stands for.
type series struct {
	about
	author  *author
	problem objects.Problem // the first one, in its present form
	more    int             // others about the same
	order   int             // in the list that was looked at last
	out     bool            // outstanding
	count   int32           // times that began
	last    time.Time       // when it was last outstanding; not used while it is

	namespace, name string // of the Event; empty while there is none
	note            string // its text
	written         int32  // the count it has
	next            time.Time
	wait            time.Duration // between the last writing or refusal and next
}

// outstanding has the series to write Events about. It does no input or output.
type outstanding struct {
	series  map[about]*series
	authors map[string]*author // by namespace; only authors with a series
}

func newOutstanding() outstanding {
	return outstanding{series: map[about]*series{}, authors: map[string]*author{}}
}

// look takes the list of all Problems. Problems of objects from files become no Events: the API
// server need not have the objects.
func (o *outstanding) look(list []objects.Problem, now time.Time) {
	seen := make(map[about]bool, len(o.series))
	for i := range list {
		p := &list[i]
		if p.Source.Kind == objects.Manifests || p.Object.Name == "" {
			continue
		}
		a := about{p.Object, p.Field, p.Why()}
		s := o.series[a]
		if seen[a] {
			if s != nil {
				s.more++
			}
			continue
		}
		seen[a] = true
		if s == nil {
			if s = o.begin(a); s == nil {
				continue
			}
		}
		if !s.out {
			s.out = true
			s.count++
		}
		s.problem, s.more, s.order = *p, 0, i
	}
	for a, s := range o.series {
		if s.out && !seen[a] {
			s.out, s.last = false, now
		}
	}
	o.forget(now)
}

// begin adds a series; it returns nil if there is no room.
func (o *outstanding) begin(a about) *series {
	of := o.authors[a.object.Namespace]
	if of == nil {
		of = &author{}
	}
	if len(o.series) >= maxEvents || of.series >= maxNamespaceEvents {
		return nil
	}
	of.series++
	s := &series{about: a, author: of}
	o.series[a], o.authors[a.object.Namespace] = s, of
	return s
}

// forget drops series that ended eventMemory ago, and older ones first if there is no room.
func (o *outstanding) forget(now time.Time) {
	const part = 8 // so much of the room is made
	over := slices.Collect(maps.Values(o.series))
	over = slices.DeleteFunc(over, func(s *series) bool { return s.out })
	slices.SortFunc(over, func(a, b *series) int { return a.last.Compare(b.last) })
	for _, s := range over {
		if len(o.series) <= maxEvents-maxEvents/part && now.Sub(s.last) <= eventMemory &&
			s.author.series <= maxNamespaceEvents-maxNamespaceEvents/part {
			continue
		}
		delete(o.series, s.about)
		if s.author.series--; s.author.series == 0 {
			delete(o.authors, s.object.Namespace)
		}
	}
}

// due returns the Event to write next or, if none is due, nil and the time of the next one; the
// zero time if there is none. Namespaces take turns, so that no Event waits behind another
// namespace's. Within a namespace, Events with the shortest interval come first, so that none waits
// behind Events that are refused or change often.
func (o *outstanding) due(now time.Time) (first *series, at time.Time) {
	for _, s := range o.series {
		switch {
		case !s.out || s.name != "" && s.written == s.count && s.note == s.text():
		case now.Before(s.next):
			if at.IsZero() || s.next.Before(at) {
				at = s.next
			}
		case first == nil || s.before(first):
			first = s
		}
	}
	return first, at
}

func (s *series) before(o *series) bool {
	return cmp.Or(s.author.wrote.Compare(o.author.wrote), cmp.Compare(s.wait, o.wait),
		cmp.Compare(s.order, o.order)) < 0
}

// text returns the Event's note, printable, shortened to the length that the API accepts.
func (s *series) text() string {
	p := &s.problem
	note := p.Message
	if p.Field != "" {
		note = p.Field + ": " + note
	}
	if p.Serving {
		note += " (its last good version is served)"
	}
	note = objects.Printable(note)
	if s.more > 0 {
		more := fmt.Sprintf(" (and %d more)", s.more)
		return short(note, maxNote-len(more)) + more
	}
	return short(note, maxNote)
}

// wrote records that the Event was written.
func (s *series) wrote(now time.Time) {
	s.written = s.count
	s.delay(now, eventMinInterval)
}

// refused records that writing it failed.
func (s *series) refused(now time.Time) { s.delay(now, eventRetry) }

func (s *series) delay(now time.Time, least time.Duration) {
	s.wait = eventlimit.Next(s.wait, least)
	s.next, s.author.wrote = now.Add(s.wait), now
}
