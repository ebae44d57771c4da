package control

import (
	"bytes"
	"cmp"
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

// OwnAddr is an address that is ours, and in which ways.
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

// Steer is what one compile asks of the kernel program. An address in Open is
// added or has its flags replaced; one in Close is ours no longer.
type Steer struct{ Open, Close SteerSet }

// Empty says that nothing changes.
func (s *Steer) Empty() bool { return s.Open.Empty() && s.Close.Empty() }

// Steering is the kernel program as the control loop sees it. All methods must
// be idempotent: what failed is asked for again.
type Steering interface {
	// Replace sends to user space exactly what is in the set, whatever a
	// predecessor left.
	Replace(*SteerSet) error
	// Open sends more packets to user space.
	Open(*SteerSet) error
	// Close leaves packets to the kernel again.
	Close(*SteerSet) error
}

// Flows is the flow table as the control loop sees it.
type Flows interface {
	// InUse returns the part of a set that live flows need: frontends and node
	// ports their clients send to, keep-sources that answer them.
	InUse(*SteerSet) SteerSet
}

// ledger remembers what the kernel program was asked for, as wishes that replace
// one another, so that changes that cancel vanish and failures are retried.
type ledger struct {
	frontends map[services.FrontendKey]bool // true: open; false: close
	addrs     map[header.Addr]services.AddrFlags
	keep      map[KeepSource]bool
}

func newLedger() *ledger {
	return &ledger{map[services.FrontendKey]bool{}, map[header.Addr]services.AddrFlags{}, map[KeepSource]bool{}}
}

func (l *ledger) empty() bool { return len(l.frontends)+len(l.addrs)+len(l.keep) == 0 }

// add notes what s asks for; it overrides what was asked before.
func (l *ledger) add(s *Steer) {
	l.note(&s.Open, true)
	l.note(&s.Close, false)
}

func (l *ledger) note(s *SteerSet, want bool) {
	for _, k := range s.Frontends {
		l.frontends[k] = want
	}
	for _, n := range s.NodePorts {
		l.frontends[n.key()] = want
	}
	for _, k := range s.KeepSources {
		l.keep[k] = want
	}
	for _, a := range s.Addrs {
		l.addrs[a.Addr] = a.Flags // zero in Close
	}
}

// opening and closing list what is asked for, in a fixed order.
func (l *ledger) opening() SteerSet { return l.list(true) }
func (l *ledger) closing() SteerSet { return l.list(false) }

func (l *ledger) list(open bool) (s SteerSet) {
	for k, want := range l.frontends {
		if want == open {
			s.addFrontend(k)
		}
	}
	for a, flags := range l.addrs {
		if (flags != 0) == open {
			s.Addrs = append(s.Addrs, OwnAddr{a, flags})
		}
	}
	for k, want := range l.keep {
		if want == open {
			s.KeepSources = append(s.KeepSources, k)
		}
	}
	s.sort()
	return s
}

// done forgets what is fulfilled.
func (l *ledger) done(s *SteerSet) {
	for _, k := range s.Frontends {
		delete(l.frontends, k)
	}
	for _, n := range s.NodePorts {
		delete(l.frontends, n.key())
	}
	for _, a := range s.Addrs {
		delete(l.addrs, a.Addr)
	}
	for _, k := range s.KeepSources {
		delete(l.keep, k)
	}
}

// without returns the set less what is in o.
func (s *SteerSet) without(o *SteerSet) SteerSet {
	return SteerSet{
		Frontends:   subtract(s.Frontends, o.Frontends),
		NodePorts:   subtract(s.NodePorts, o.NodePorts),
		Addrs:       subtract(s.Addrs, o.Addrs),
		KeepSources: subtract(s.KeepSources, o.KeepSources),
	}
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
