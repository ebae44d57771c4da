package services

import (
	"bytes"
	"cmp"
	"slices"
	"sync/atomic"

	"sluice.dev/sluice/nat/header"
)

// Draw has the inputs for the choice of a new flow's backend, besides the frontend and its set.
type Draw struct {
	Tuple  *header.Tuple  // client to frontend
	Random uint64         // for the scheduler Random, for large sets, and for Not; it must not be guessable
	Loads  []atomic.Int32 // connections by backend index; 0 for indexes beyond its end
	// Not is a backend that is chosen only if there is no other; zero for none. It is a backend
	// that had the flow and did not answer. With it every scheduler draws at random: its usual
	// choice would be the same each time, and may be another backend that does not answer. A direct
	// Service keeps the usual choice unless that is Not, because another gateway finds the flow's
	// node by the hash.
	Not BackendRef
	// DryRun is for a choice that makes no flow: no turn is taken.
	DryRun bool
}

// Choice is a backend and how it was found.
type Choice struct {
	Backend BackendRef // zero if the set is empty
	// Slot is the backend's position in the set's Table; -1 if the scheduler compared connections,
	// or if nearly all slots have the excluded backend.
	Slot int
	// Compared is the number of backends whose connections were compared.
	Compared int
}

// Choose returns the backend for a new flow. The set must be one of the frontend's in this
// snapshot. Choose does not allocate, and writes only f.Turn.
//
// For Maglev, SourceHash and DestinationHash the result is the same in every process that has the
// same set and SelectKey. With session affinity, Maglev hashes only the client's address and the
// service port: a client without a pin at one gateway gets the same backend as at the others.
//
// Connections are counted in this process: gateways do not share counts. The flow's hash breaks
// ties, so that not all gateways choose the same backend.
func (s *Snapshot) Choose(f *Frontend, set *EndpointSet, d *Draw) Choice {
	svc := f.Service
	switch {
	case len(set.Backends) == 0:
		return Choice{Slot: -1}
	case d.Not != 0 && !svc.Direct:
		return set.another(d.Random, d.Not)
	case svc.Scheduler.ByLoad():
		return Choice{set.least(svc.Scheduler, s.SelectHash(d.Tuple), d), -1, min(len(set.Backends), MaxCompared)}
	}
	n := set.Slots()
	slot := 0
	switch svc.Scheduler {
	case RoundRobin, WeightedRoundRobin:
		slot = int(f.turn(d.DryRun) % uint32(n))
	default:
		slot = slotOf(s.hash(svc, d), n)
	}
	if c := set.at(slot); c != d.Not {
		return Choice{Backend: c, Slot: slot}
	}
	return set.another(d.Random, d.Not)
}

// ByLoad reports whether a scheduler compares connections.
func (s Scheduler) ByLoad() bool {
	return s == LeastConn || s == WeightedLeastConn || s == ShortestDelay || s == NeverQueue
}

// ByHash reports whether a scheduler's choice depends only on SelectKey and the packet.
func (s Scheduler) ByHash() bool { return s == Maglev || s == SourceHash || s == DestinationHash }

// hash returns the hash that selects the slot, for schedulers with a table of slots.
func (s *Snapshot) hash(svc *Service, d *Draw) uint64 {
	switch svc.Scheduler {
	case Random:
		return d.Random
	case SourceHash:
		return s.addrHash(&d.Tuple.Src, 0)
	case DestinationHash:
		return s.addrHash(&d.Tuple.Dst, 0)
	}
	if svc.AffinitySeconds != 0 {
		return s.addrHash(&d.Tuple.Src, svc.Identity)
	}
	return s.SelectHash(d.Tuple)
}

// addrHash is a hash like SelectHash, of one address and a number.
func (s *Snapshot) addrHash(a *header.Addr, n uint64) uint64 {
	h := fold(word(a[:8])^s.SelectKey[0], word(a[8:])^s.SelectKey[1]^0x9e3779b97f4a7c15)
	return fold(h^n^0xa0761d6478bd642f, h^s.SelectKey[0]^0xe7037ed1a0b428db)
}

// turn returns the turn of a new flow. The atomic orders no other memory accesses: it only prevents
// two workers from taking the same turn.
func (f *Frontend) turn(dryRun bool) uint32 {
	if dryRun {
		return f.Turn.Load()
	}
	return f.Turn.Add(1) - 1
}

// slotOf scales a hash to n slots.
func slotOf(hash uint64, n int) int { return int((hash >> 32) * uint64(n) >> 32) }

// Slots returns the length of the table. A set without a table has a slot for each backend.
func (s *EndpointSet) Slots() int {
	if len(s.Table) != 0 {
		return len(s.Table)
	}
	return len(s.Backends)
}

func (s *EndpointSet) at(slot int) BackendRef {
	switch {
	case len(s.Table) == 0:
		return s.Backends[slot]
	case s.Named != nil:
		return s.Named[s.Table[slot]]
	}
	return s.Backends[s.Table[slot]]
}

// maxDraws bounds the slots that another draws.
const maxDraws = 64

// another draws a random slot whose backend is not the excluded one, so that the shares of the
// table apply. If nearly all slots have the excluded backend, it chooses any other backend of the
// set, with Slot -1: a search of a table of millions of slots would delay packets.
func (s *EndpointSet) another(random uint64, not BackendRef) Choice {
	slot, n := 0, s.Slots()
	for range maxDraws {
		if slot = slotOf(random, n); s.at(slot) != not {
			return Choice{Backend: s.at(slot), Slot: slot}
		}
		random = fold(random^0xa0761d6478bd642f, 0xe7037ed1a0b428db)
	}
	for i, from := 0, slotOf(random, len(s.Backends)); i < min(2, len(s.Backends)); i++ {
		if r := s.Backends[(from+i)%len(s.Backends)]; r != not {
			return Choice{Backend: r, Slot: -1}
		}
	}
	return Choice{Backend: not, Slot: slot}
}

// MaxCompared bounds the backends whose connections are compared for one flow.
const MaxCompared = 1024

// least returns the backend with the least load by the scheduler's measure. It compares all
// backends, or MaxCompared, starting at a random one, if there are more:
//
//	lc    connections
//	wlc   connections / weight
//	sed   (connections + 1) / weight
//	nq    as sed, but a backend without connections is chosen first
//
// Quotients are compared as products: a/v < b/w if a*w < b*v. The products fit into 64 bits: there
// are at most 2^31 connections, and weights are less than 2^16.
func (s *EndpointSet) least(by Scheduler, hash uint64, d *Draw) BackendRef {
	var best BackendRef
	var bestLoad, bestWeight, bestTie uint64
	n, i := len(s.Backends), 0
	if n > MaxCompared {
		i = slotOf(d.Random, n)
	}
	for range min(n, MaxCompared) {
		if i == n {
			i = 0
		}
		r := s.Backends[i]
		load, weight := s.load(by, i, d.Loads)
		i++
		if best != 0 {
			a, b := load*bestWeight, bestLoad*weight
			if a > b || a == b && tie(hash, r) >= bestTie {
				continue
			}
		}
		best, bestLoad, bestWeight, bestTie = r, load, weight, tie(hash, r)
	}
	return best
}

// load returns the dividend and the divisor of a backend's load.
func (s *EndpointSet) load(by Scheduler, i int, loads []atomic.Int32) (load, weight uint64) {
	if n := s.Backends[i].Index(); n < uint32(len(loads)) {
		load = uint64(max(0, loads[n].Load()))
	}
	weight = 1
	if s.Weights != nil && by != LeastConn {
		weight = uint64(s.Weights[i])
	}
	if by == ShortestDelay || by == NeverQueue && load != 0 {
		load++
	}
	return load, weight
}

// tie orders backends differently for each flow (rendezvous hashing).
func tie(hash uint64, r BackendRef) uint64 {
	return fold(hash^0x8bb84b93962eacc9, uint64(r)*0x9e3779b97f4a7c15|1)
}

// Find returns the set's backend with an address and port, or zero. It costs as much as find.
func (s *EndpointSet) Find(snap *Snapshot, addr header.Addr, port uint16) BackendRef {
	return snap.find(s.Backends, addr, port)
}

// Find returns the service port's endpoint with an address and port, or zero. It also finds
// endpoints that take no new flows. It costs as much as find.
func (svc *Service) Find(snap *Snapshot, addr header.Addr, port uint16) BackendRef {
	return snap.find(svc.Backends, addr, port)
}

// find returns the backend with an address and port from a list in the order of compareEndpoints,
// or zero. It compares only log2(n) + 1 of n backends, because it runs on the packet path.
func (s *Snapshot) find(list []BackendRef, addr header.Addr, port uint16) BackendRef {
	lo, hi := 0, len(list)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		b := s.Backend(list[mid])
		if b == nil {
			return 0 // the list is not of this snapshot
		}
		switch c := compareEndpoints(b, &addr, port); {
		case c == 0:
			return b.Ref
		case c < 0:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return 0
}

// compareEndpoints compares a backend with an endpoint: IPv4 before IPv6, then by address and port.
func compareEndpoints(b *Backend, addr *header.Addr, port uint16) int {
	if v4 := b.Addr.Is4(); v4 != addr.Is4() {
		if v4 {
			return -1
		}
		return 1
	}
	if c := bytes.Compare(b.Addr[:], addr[:]); c != 0 {
		return c
	}
	return int(b.Port) - int(port)
}

// orderByFold returns the backends of a list in the order of their addresses' Fold.
func (s *Snapshot) orderByFold(list []BackendRef) []BackendRef {
	type folded struct {
		fold uint32
		ref  BackendRef
	}
	all := make([]folded, 0, len(list))
	for _, ref := range list {
		if b := s.Backend(ref); b != nil {
			all = append(all, folded{b.Addr.Fold(), ref})
		}
	}
	slices.SortStableFunc(all, func(a, b folded) int { return cmp.Compare(a.fold, b.fold) })
	refs := make([]BackendRef, len(all))
	for i := range all {
		refs[i] = all[i].ref
	}
	return refs
}

// FindNode returns the first node of a direct Service whose address has a Fold, or zero. It costs
// as much as find.
func (svc *Service) FindNode(snap *Snapshot, fold uint32) BackendRef {
	lo, hi := 0, len(svc.byFold)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		b := snap.Backend(svc.byFold[mid])
		if b == nil {
			return 0 // the list is not of this snapshot
		}
		if b.Addr.Fold() < fold {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == len(svc.byFold) {
		return 0
	}
	if b := snap.Backend(svc.byFold[lo]); b == nil || b.Addr.Fold() != fold {
		return 0
	}
	return svc.byFold[lo]
}

// Node returns the node of a packet of a direct Service that belongs to no flow, which is the node
// that a new flow gets, or 0 if there is none. client is the tuple from client to frontend.
func (s *Snapshot) Node(f *Frontend, client *header.Tuple) BackendRef {
	set := f.Outside.Set
	if s.Pods.Contains(client.Src) {
		set = f.Pod.Set
	}
	return s.Choose(f, set, &Draw{Tuple: client, DryRun: true}).Backend
}
