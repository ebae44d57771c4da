package loop

import (
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// pendingChanges are the entries that the kernel program has yet to open or close. A later request
// for an entry replaces an earlier one, so changes that cancel out disappear, and failed ones are
// retried. No frontend, kept source, port of replies or flag of an address is in both toOpen and
// toClose. The two are separate because closing may wait long for flows, while many passes open
// entries.
//
// Refused entries, which the kernel program could not hold, are not in toOpen: nothing waits for
// them.
type pendingChanges struct{ toOpen, toClose, refused entries }

type entries struct {
	frontends map[services.FrontendKey]bool
	addrs     map[header.Addr]services.AddrFlags
	keep      map[steer.KeepSource]bool
	replies   *steer.PortSet
}

func newEntries() entries {
	return entries{
		frontends: map[services.FrontendKey]bool{}, addrs: map[header.Addr]services.AddrFlags{},
		keep: map[steer.KeepSource]bool{},
	}
}

func newPending() *pendingChanges {
	return &pendingChanges{newEntries(), newEntries(), newEntries()}
}

func (l *pendingChanges) empty() bool { return l.opens()+l.closes()+l.refused.len() == 0 }

// opens and closes count the entries; an address counts once.
func (l *pendingChanges) opens() int  { return l.toOpen.len() }
func (l *pendingChanges) closes() int { return l.toClose.len() }

// opening and closing list them in a fixed order.
func (l *pendingChanges) opening() steer.Set { return l.toOpen.list() }
func (l *pendingChanges) closing() steer.Set { return l.toClose.list() }

// add takes in a change, which replaces earlier requests for the same entries.
func (l *pendingChanges) add(s *steer.Change) {
	l.note(&s.Open, true)
	l.note(&s.Close, false)
}

func (l *pendingChanges) note(s *steer.Set, want bool) {
	to, from := &l.toOpen, &l.toClose
	if !want {
		to, from = from, to
	}
	from.remove(s)
	l.refused.remove(s)
	to.add(s)
}

// refuse moves entries to the refused ones; again moves all refused entries back to toOpen.
func (l *pendingChanges) refuse(s *steer.Set) {
	l.toOpen.remove(s)
	l.refused.add(s)
}

func (l *pendingChanges) again() {
	set := l.refused.list()
	l.refused.remove(&set)
	l.toOpen.add(&set)
}

// opened and closed remove finished entries. Ports of replies are opened for live flows alone, so
// they are closed with the last flow.
func (l *pendingChanges) opened(s *steer.Set) {
	l.toOpen.remove(s)
	l.toClose.add(&steer.Set{Replies: s.Replies})
}

func (l *pendingChanges) closed(s *steer.Set) { l.toClose.remove(s) }

func (w *entries) len() int { return len(w.frontends) + len(w.addrs) + len(w.keep) + w.replies.Len() }

func (w *entries) add(s *steer.Set) {
	for _, k := range s.Frontends {
		w.frontends[k] = true
	}
	for _, n := range s.NodePorts {
		w.frontends[n.Key()] = true
	}
	for _, a := range s.Addrs {
		w.addrs[a.Addr] |= a.Flags
	}
	for _, k := range s.KeepSources {
		w.keep[k] = true
	}
	w.replies = w.replies.With(s.Replies)
}

// remove removes the entries of a set. It replaces maps that become empty: iterating over an empty
// map costs as much as when it was full.
func (w *entries) remove(s *steer.Set) {
	if w.len() == 0 || s.Empty() {
		return
	}
	for _, k := range s.Frontends {
		delete(w.frontends, k)
	}
	for _, n := range s.NodePorts {
		delete(w.frontends, n.Key())
	}
	for _, a := range s.Addrs {
		if rest := w.addrs[a.Addr] &^ a.Flags; rest != 0 {
			w.addrs[a.Addr] = rest
		} else {
			delete(w.addrs, a.Addr)
		}
	}
	for _, k := range s.KeepSources {
		delete(w.keep, k)
	}
	w.replies = w.replies.Without(s.Replies)
	if w.len() == 0 {
		*w = newEntries()
	}
}

func (w *entries) list() (s steer.Set) {
	for k := range w.frontends {
		s.AddFrontend(k)
	}
	for a, flags := range w.addrs {
		s.Addrs = append(s.Addrs, steer.OwnAddr{Addr: a, Flags: flags})
	}
	for k := range w.keep {
		s.KeepSources = append(s.KeepSources, k)
	}
	s.Replies = w.replies
	s.Sort()
	return s
}
