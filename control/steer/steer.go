package steer

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// NodePort is a port that all node-port addresses of this node accept, in one family.
type NodePort struct {
	V6    bool   `json:"v6"`
	Proto uint8  `json:"proto"`
	Port  uint16 `json:"port"`
}

// OwnAddr is an address of the gateway with its roles. Each flag is opened and closed by itself: an
// address that no longer accepts node ports may still receive the replies of flows.
type OwnAddr struct {
	Addr  header.Addr        `json:"addr"`
	Flags services.AddrFlags `json:"flags"`
}

// KeepSource is a backend whose replies are steered by their source, because its service keeps the
// client's address.
type KeepSource struct {
	Addr  header.Addr `json:"addr"`
	Port  uint16      `json:"port"`
	Proto uint8       `json:"proto"`
}

// Set is a set of rules for the packets that the kernel program redirects to user space.
type Set struct {
	Frontends   []services.FrontendKey // all but node ports
	NodePorts   []NodePort
	Addrs       []OwnAddr
	KeepSources []KeepSource
	// Replies are the ports outside of the configured range (snat.ports) that replies arrive at;
	// nil is none. They belong to flows that began with another range, or before the node had their
	// source address. The set must not change.
	Replies *PortSet
}

// Empty reports whether the set has no rules.
func (s *Set) Empty() bool { return s.Len() == 0 }

// Len returns the number of rules; an address counts once.
func (s *Set) Len() int {
	return len(s.Frontends) + len(s.NodePorts) + len(s.Addrs) + len(s.KeepSources) + s.Replies.Len()
}

// Change has the rules that the kernel program must add (Open) and remove (Close) after a compile.
// An address is in Open with the flags that it gains, and in Close with the flags that it loses;
// its other flags stay.
type Change struct{ Open, Close Set }

// Empty reports whether nothing changes.
func (s *Change) Empty() bool { return s.Open.Empty() && s.Close.Empty() }

// RefusedError is returned by Steering.Open and Replace if the kernel program cannot hold the rules
// in Set, for example because a table is full, and has all other rules of the request. After any
// other error the caller does not know which rules the kernel program has.
type RefusedError struct {
	Set Set
	Err error
}

func (r *RefusedError) Error() string {
	return fmt.Sprintf("%d steering rules are refused, all others are in force: %v", r.Set.Len(), r.Err)
}

func (r *RefusedError) Unwrap() error { return r.Err }

// Without returns the rules of s that are not in o.
func (s *Set) Without(o *Set) Set {
	return Set{
		Frontends:   subtract(s.Frontends, o.Frontends),
		NodePorts:   subtract(s.NodePorts, o.NodePorts),
		Addrs:       subtractFlags(s.Addrs, o.Addrs),
		KeepSources: subtract(s.KeepSources, o.KeepSources),
		Replies:     s.Replies.Without(o.Replies),
	}
}

// With returns the rules of both sets, which must not overlap.
func (s *Set) With(o *Set) Set {
	sum := Set{
		Frontends:   slices.Concat(s.Frontends, o.Frontends),
		NodePorts:   slices.Concat(s.NodePorts, o.NodePorts),
		Addrs:       slices.Clone(s.Addrs),
		KeepSources: slices.Concat(s.KeepSources, o.KeepSources),
		Replies:     s.Replies.With(o.Replies),
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
	sum.Sort()
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

// subtractFlags removes flags, and then addresses without flags.
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

// AddFrontend adds a key, to NodePorts if it is a node port's.
func (s *Set) AddFrontend(k services.FrontendKey) {
	switch k.Addr {
	case services.AnyIPv4:
		s.NodePorts = append(s.NodePorts, NodePort{false, k.Proto, k.Port})
	case services.AnyIPv6:
		s.NodePorts = append(s.NodePorts, NodePort{true, k.Proto, k.Port})
	default:
		s.Frontends = append(s.Frontends, k)
	}
}

// Key returns the node port's frontend key.
func (n NodePort) Key() services.FrontendKey {
	if n.V6 {
		return services.FrontendKey{Addr: services.AnyIPv6, Port: n.Port, Proto: n.Proto}
	}
	return services.FrontendKey{Addr: services.AnyIPv4, Port: n.Port, Proto: n.Proto}
}

// Sort sorts the set.
func (s *Set) Sort() {
	slices.SortFunc(s.Frontends, CompareKeys)
	slices.SortFunc(s.NodePorts, func(a, b NodePort) int { return CompareKeys(a.Key(), b.Key()) })
	slices.SortFunc(s.Addrs, func(a, b OwnAddr) int { return bytes.Compare(a.Addr[:], b.Addr[:]) })
	slices.SortFunc(s.KeepSources, func(a, b KeepSource) int {
		return CompareKeys(services.FrontendKey(a), services.FrontendKey(b))
	})
}

// CompareKeys orders frontends by address, port and protocol.
func CompareKeys(a, b services.FrontendKey) int {
	return cmp.Or(bytes.Compare(a.Addr[:], b.Addr[:]), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Proto, b.Proto))
}
