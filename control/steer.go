package control

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// NodePort is a port that this node's addresses accept in one family.
type NodePort struct {
	V6    bool   `json:"v6"`
	Proto uint8  `json:"proto"`
	Port  uint16 `json:"port"`
}

// OwnAddr is an address that is ours, and in which ways. The ways open and close
// one by one, because flows need them one by one: an address that accepts no more
// node ports may still be the one that replies come to.
type OwnAddr struct {
	Addr  header.Addr        `json:"addr"`
	Flags services.AddrFlags `json:"flags"`
}

// KeepSource is a backend whose replies must be caught by their source, because
// its service keeps the client's address.
type KeepSource struct {
	Addr  header.Addr `json:"addr"`
	Port  uint16      `json:"port"`
	Proto uint8       `json:"proto"`
}

// SteerSet is what the kernel program sends to user space.
type SteerSet struct {
	Frontends   []services.FrontendKey // with an address of their own
	NodePorts   []NodePort
	Addrs       []OwnAddr
	KeepSources []KeepSource
}

// Empty says that there is nothing in the set.
func (s *SteerSet) Empty() bool { return s.len() == 0 }

func (s *SteerSet) len() int {
	return len(s.Frontends) + len(s.NodePorts) + len(s.Addrs) + len(s.KeepSources)
}

// Steer is what one compile asks of the kernel program. An address has in Open the
// flags that it gains, in Close those that it loses; what it has besides stays.
type Steer struct{ Open, Close SteerSet }

// Empty says that nothing changes.
func (s *Steer) Empty() bool { return s.Open.Empty() && s.Close.Empty() }

// Refusal is an error of Steering.Open and Replace: what is in Set cannot be had, such as for
// want of room in the kernel's tables, and all else that was asked for is done. Any other
// error says nothing of what is done.
type Refusal struct {
	Set SteerSet
	Err error
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("%d of what is to be steered is refused, all else is steered: %v", r.Set.len(), r.Err)
}

func (r *Refusal) Unwrap() error { return r.Err }

// Steering is the kernel program as the control loop sees it. All methods must
// be idempotent: what failed is asked for again.
type Steering interface {
	// Held is what the kernel program sends to user space now: before the first
	// Replace, what a predecessor left.
	Held() SteerSet
	// Replace sends to user space exactly what is in the set.
	Replace(*SteerSet) error
	// Open sends more packets to user space. Addresses gain the flags in the set.
	Open(*SteerSet) error
	// Close leaves packets to the kernel again. Addresses lose the flags in the set.
	Close(*SteerSet) error
}

// Flows is the flow table as the control loop sees it.
type Flows interface {
	// InUse returns the part of a set that live flows need: frontends and node
	// ports their clients send to, keep-sources that answer them. Of an address
	// it returns those of the flags in the set that are needed: AddrVIP and AddrNode
	// if clients send to it, AddrSNAT if replies come to it.
	InUse(*SteerSet) SteerSet
}

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
	keep      map[KeepSource]bool
}

func newWishes() wishes {
	return wishes{map[services.FrontendKey]bool{}, map[header.Addr]services.AddrFlags{}, map[KeepSource]bool{}}
}

func newLedger() *ledger { return &ledger{newWishes(), newWishes(), newWishes()} }

func (l *ledger) empty() bool { return l.opens()+l.closes()+l.refused.len() == 0 }

// opens and closes count what is asked for; an address counts once.
func (l *ledger) opens() int  { return l.toOpen.len() }
func (l *ledger) closes() int { return l.toClose.len() }

// opening and closing list it, in a fixed order.
func (l *ledger) opening() SteerSet { return l.toOpen.list() }
func (l *ledger) closing() SteerSet { return l.toClose.list() }

// add notes what s asks for; it overrides what was asked before.
func (l *ledger) add(s *Steer) {
	l.note(&s.Open, true)
	l.note(&s.Close, false)
}

func (l *ledger) note(s *SteerSet, want bool) {
	to, from := &l.toOpen, &l.toClose
	if !want {
		to, from = from, to
	}
	from.remove(s)
	l.refused.remove(s)
	to.add(s)
}

// refuse sets aside what cannot be had, and again asks for it once more.
func (l *ledger) refuse(s *SteerSet) {
	l.toOpen.remove(s)
	l.refused.add(s)
}

func (l *ledger) again() {
	set := l.refused.list()
	l.refused.remove(&set)
	l.toOpen.add(&set)
}

// opened and closed forget what is fulfilled.
func (l *ledger) opened(s *SteerSet) { l.toOpen.remove(s) }
func (l *ledger) closed(s *SteerSet) { l.toClose.remove(s) }

func (w *wishes) len() int { return len(w.frontends) + len(w.addrs) + len(w.keep) }

func (w *wishes) add(s *SteerSet) {
	for _, k := range s.Frontends {
		w.frontends[k] = true
	}
	for _, n := range s.NodePorts {
		w.frontends[n.key()] = true
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
func (w *wishes) remove(s *SteerSet) {
	if w.len() == 0 || s.Empty() {
		return
	}
	for _, k := range s.Frontends {
		delete(w.frontends, k)
	}
	for _, n := range s.NodePorts {
		delete(w.frontends, n.key())
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

func (w *wishes) list() (s SteerSet) {
	for k := range w.frontends {
		s.addFrontend(k)
	}
	for a, flags := range w.addrs {
		s.Addrs = append(s.Addrs, OwnAddr{a, flags})
	}
	for k := range w.keep {
		s.KeepSources = append(s.KeepSources, k)
	}
	s.sort()
	return s
}

// Without returns the set less what is in o.
func (s *SteerSet) Without(o *SteerSet) SteerSet {
	return SteerSet{
		Frontends:   subtract(s.Frontends, o.Frontends),
		NodePorts:   subtract(s.NodePorts, o.NodePorts),
		Addrs:       subtractFlags(s.Addrs, o.Addrs),
		KeepSources: subtract(s.KeepSources, o.KeepSources),
	}
}

// with returns the set and what is in o; the two have nothing in common.
func (s *SteerSet) with(o *SteerSet) SteerSet {
	sum := SteerSet{
		Frontends:   slices.Concat(s.Frontends, o.Frontends),
		NodePorts:   slices.Concat(s.NodePorts, o.NodePorts),
		Addrs:       slices.Clone(s.Addrs),
		KeepSources: slices.Concat(s.KeepSources, o.KeepSources),
	}
	at := make(map[header.Addr]int, len(s.Addrs))
	for i, a := range s.Addrs {
		at[a.Addr] = i
	}
	for _, a := range o.Addrs {
		if i, ok := at[a.Addr]; ok {
			sum.Addrs[i].Flags |= a.Flags
		} else {
			sum.Addrs = append(sum.Addrs, a)
		}
	}
	sum.sort()
	return sum
}

func subtract[T comparable](from, what []T) (rest []T) {
	out := make(map[T]bool, len(what))
	for _, w := range what {
		out[w] = true
	}
	for _, f := range from {
		if !out[f] {
			rest = append(rest, f)
		}
	}
	return rest
}

// subtractFlags takes flags away, and addresses that have none left.
func subtractFlags(from, what []OwnAddr) (rest []OwnAddr) {
	out := make(map[header.Addr]services.AddrFlags, len(what))
	for _, w := range what {
		out[w.Addr] |= w.Flags
	}
	for _, f := range from {
		if f.Flags &^= out[f.Addr]; f.Flags != 0 {
			rest = append(rest, f)
		}
	}
	return rest
}

// addFrontend files a key under node ports if it has no address of its own.
func (s *SteerSet) addFrontend(k services.FrontendKey) {
	switch k.Addr {
	case services.AnyIPv4:
		s.NodePorts = append(s.NodePorts, NodePort{false, k.Proto, k.Port})
	case services.AnyIPv6:
		s.NodePorts = append(s.NodePorts, NodePort{true, k.Proto, k.Port})
	default:
		s.Frontends = append(s.Frontends, k)
	}
}

func (n NodePort) key() services.FrontendKey {
	if n.V6 {
		return services.FrontendKey{Addr: services.AnyIPv6, Port: n.Port, Proto: n.Proto}
	}
	return services.FrontendKey{Addr: services.AnyIPv4, Port: n.Port, Proto: n.Proto}
}

func (s *SteerSet) sort() {
	slices.SortFunc(s.Frontends, compareKeys)
	slices.SortFunc(s.NodePorts, func(a, b NodePort) int { return compareKeys(a.key(), b.key()) })
	slices.SortFunc(s.Addrs, func(a, b OwnAddr) int { return bytes.Compare(a.Addr[:], b.Addr[:]) })
	slices.SortFunc(s.KeepSources, func(a, b KeepSource) int {
		return compareKeys(services.FrontendKey(a), services.FrontendKey(b))
	})
}

func compareKeys(a, b services.FrontendKey) int {
	return cmp.Or(bytes.Compare(a.Addr[:], b.Addr[:]), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Proto, b.Proto))
}
