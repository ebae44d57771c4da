package flowtable

import (
	"encoding/binary"
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/nat/header"
)

// DefaultLimitSources is the default of Config.LimitSources.
const DefaultLimitSources = 1 << 16

// sourceWays is the size of a set: two cache lines.
const sourceWays = 4

// changing is the count of an entry while it is assigned to another source.
const changing = math.MaxUint32

// source counts the flows of one source to one service. id is a keyed hash of both: it cannot be
// guessed, and the probability that two of a million sources have the same id is 1 in 10^7.
//
// use is a version and a count, 32 bits each. A handle that loads use, then finds the id, and then
// swaps use has changed the entry of that id: an entry gets another id only under a new version. An
// entry is assigned to another source only while its count is 0, so an add can always be
// subtracted. If two workers claim an entry for the same source at once, the source may have two
// entries. That is harmless, because the count of a source is the sum over its entries.
type source struct {
	id  atomic.Uint64
	use atomic.Uint64
	due atomic.Uint64 // see takeToken
	_   uint64
}

// sources has the entries of all sources; the id selects the set. Any handle writes them.
type sources struct {
	sets    [][sourceWays]source
	secret  HashKey
	evicted atomic.Uint64
	missed  atomic.Uint64
}

func newSources(n uint32) *sources {
	if n == 0 {
		n = DefaultLimitSources
	}
	return &sources{sets: make([][sourceWays]source, (n+1)/2), secret: randomKey()}
}

// idOf returns the id of a client's source: an IPv4 address, or the /64 of an IPv6 address, because
// a subscriber usually has a whole /64.
func (s *sources) idOf(client *header.Addr, v6 bool, service uint32) uint64 {
	word, family := uint64(binary.BigEndian.Uint32(client[12:])), uint64(0)
	if v6 {
		word, family = binary.BigEndian.Uint64(client[:8]), 1
	}
	return s.secret.Words(word, family, uint64(service)) | 1 // 0 is no source
}

func (s *sources) set(id uint64) *[sourceWays]source {
	i, _ := bits.Mul64(id, uint64(len(s.sets)))
	return &s.sets[i]
}

// maxSourceTries bounds the work of a writer. A try fails only if another writer's change of the
// same set succeeded.
const maxSourceTries = 64

// add counts one more flow of a source. It returns false if all entries of the set have flows of
// other sources: then the flow is not counted.
func (s *sources) add(id uint64, now Time) bool {
	set := s.set(id)
	for range maxSourceTries {
		e, u := s.find(set, id, func(uint32) bool { return true })
		if e != nil {
			if e.use.CompareAndSwap(u, u+1) {
				return true
			}
			continue
		}
		if e, u = leastDue(set); e == nil {
			break
		}
		next := (u>>32 + 1) << 32
		if !e.use.CompareAndSwap(u, next|changing) {
			continue
		}
		if e.due.Load() > uint64(now) {
			s.evicted.Add(1)
		}
		e.due.Store(0)
		e.id.Store(id)
		e.use.Store(next | 1) // publishes id and due
		return true
	}
	s.missed.Add(1)
	return false
}

// find returns the first entry of a source for whose count ok returns true, and its use, loaded
// before its id.
func (s *sources) find(set *[sourceWays]source, id uint64, ok func(count uint32) bool) (*source, uint64) {
	for i := range set {
		e := &set[i]
		u := e.use.Load()
		if uint32(u) != changing && e.id.Load() == id && ok(uint32(u)) {
			return e, u
		}
	}
	return nil, 0
}

// leastDue returns the entry without flows whose allowance is full first, or nil if all entries
// have flows.
func leastDue(set *[sourceWays]source) (e *source, use uint64) {
	least := uint64(math.MaxUint64)
	for i := range set {
		if u, due := set[i].use.Load(), set[i].due.Load(); uint32(u) == 0 && due < least {
			e, use, least = &set[i], u, due
		}
	}
	return e, use
}

// sub is the inverse of an add that returned true.
func (s *sources) sub(id uint64) {
	set := s.set(id)
	for range maxSourceTries {
		e, u := s.find(set, id, func(count uint32) bool { return count != 0 })
		if e != nil && e.use.CompareAndSwap(u, u-1) {
			return
		}
	}
}

// count returns how many flows a source has, and the time at which its allowance is full.
func (s *sources) count(id uint64) (flows uint32, due Time) {
	set := s.set(id)
	for i := range set {
		e := &set[i]
		if u := e.use.Load(); uint32(u) != changing && e.id.Load() == id {
			flows += uint32(u)
			due = max(due, Time(e.due.Load()))
		}
	}
	return flows, due
}

// take takes a token from the allowance of a source that has a flow.
func (s *sources) take(id uint64, rate uint32, now Time) {
	if e, _ := s.find(s.set(id), id, func(uint32) bool { return true }); e != nil {
		takeToken(&e.due, rate, now)
	}
}

// Burst is the number of new connections that may come at once, as the time in which the rate
// allows them.
const Burst = Time(time.Second)

// maxDebt bounds how far an allowance is overdrawn beyond its burst, by connections that were
// admitted before the first of them reached an assured state.
const maxDebt = Time(time.Second)

// An allowance of new connections is a token bucket, kept as the time at which it will be full (the
// generic cell rate algorithm, ITU-T I.371): each token moves that time by a second divided by the
// rate.

// takeToken takes a token, even if none is left.
func takeToken(due *atomic.Uint64, rate uint32, now Time) {
	step := Time(time.Second) / Time(rate)
	for {
		was := due.Load()
		next := min(max(Time(was), now)+step, now+Burst+maxDebt)
		if uint64(next) == was || due.CompareAndSwap(was, uint64(next)) {
			return
		}
	}
}

// Spent reports whether an allowance of rate connections a second, which is full at due, has no
// token left.
func Spent(due Time, rate uint32, now Time) bool {
	return due+Time(time.Second)/Time(rate) > now+Burst
}
