package loop

import (
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// ledger remembers what the kernel program was asked for, as wishes that replace
// one another, so that changes that cancel vanish and failures are retried. No
// frontend, keep-source or flag of an address is both to open and to close. The two are
// apart because what closes may wait long, for flows, and many passes open meanwhile.
//
// What was refused for good is apart from what is to open: nobody waits for it.
type ledger struct{ toOpen, toClose, refused wishes }

type wishes struct {
	frontends map[services.FrontendKey]bool
	addrs     map[header.Addr]services.AddrFlags
	keep      map[steer.KeepSource]bool
}

func newWishes() wishes {
	return wishes{map[services.FrontendKey]bool{}, map[header.Addr]services.AddrFlags{}, map[steer.KeepSource]bool{}}
}

func newLedger() *ledger { return &ledger{newWishes(), newWishes(), newWishes()} }

func (l *ledger) empty() bool { return l.opens()+l.closes()+l.refused.len() == 0 }

// opens and closes count what is asked for; an address counts once.
func (l *ledger) opens() int  { return l.toOpen.len() }
func (l *ledger) closes() int { return l.toClose.len() }

// opening and closing list it, in a fixed order.
func (l *ledger) opening() steer.Set { return l.toOpen.list() }
func (l *ledger) closing() steer.Set { return l.toClose.list() }

// add notes what s asks for; it overrides what was asked before.
func (l *ledger) add(s *steer.Change) {
	l.note(&s.Open, true)
	l.note(&s.Close, false)
}

func (l *ledger) note(s *steer.Set, want bool) {
	to, from := &l.toOpen, &l.toClose
	if !want {
		to, from = from, to
	}
	from.remove(s)
	l.refused.remove(s)
	to.add(s)
}

// refuse sets aside what cannot be had, and again asks for it once more.
func (l *ledger) refuse(s *steer.Set) {
	l.toOpen.remove(s)
	l.refused.add(s)
}

func (l *ledger) again() {
	set := l.refused.list()
	l.refused.remove(&set)
	l.toOpen.add(&set)
}

// opened and closed forget what is fulfilled.
func (l *ledger) opened(s *steer.Set) { l.toOpen.remove(s) }
func (l *ledger) closed(s *steer.Set) { l.toClose.remove(s) }

func (w *wishes) len() int { return len(w.frontends) + len(w.addrs) + len(w.keep) }

func (w *wishes) add(s *steer.Set) {
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
}

// remove takes wishes away. When the last one goes, so do the maps: walking an empty one
// costs what it once held.
func (w *wishes) remove(s *steer.Set) {
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
	if w.len() == 0 {
		*w = newWishes()
	}
}

func (w *wishes) list() (s steer.Set) {
	for k := range w.frontends {
		s.AddFrontend(k)
	}
	for a, flags := range w.addrs {
		s.Addrs = append(s.Addrs, steer.OwnAddr{Addr: a, Flags: flags})
	}
	for k := range w.keep {
		s.KeepSources = append(s.KeepSources, k)
	}
	s.Sort()
	return s
}
