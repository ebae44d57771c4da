package model

import (
	"hash/maphash"
	"math/rand/v2"
	"strconv"
	"strings"
)

// A machine is a system whose state S is a small value and whose events are functions from state to
// state.
type machine[S comparable] interface {
	// initial returns the state in which every exploration starts.
	initial() S
	// next appends all states to which one event leads.
	next(s *S, to *steps[S])
	// hash returns the same value for states that differ only in the names of interchangeable
	// parts: clients, or members.
	hash(s *S, seed maphash.Seed) uint64
	// violation returns the broken invariant of a state, or an empty string.
	violation(s *S) string
}

// event is the description of a step. Each # of text stands for the next number of args.
type event struct {
	text string
	args [3]uint8
}

func (e event) String() string {
	var b strings.Builder
	for arg := 0; ; arg++ {
		before, after, found := strings.Cut(e.text, "#")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		b.WriteString(strconv.Itoa(int(e.args[arg])))
		e.text = after
	}
}

// step is an event and the state after it.
type step[S any] struct {
	event event
	to    S
}

// steps collects the successors of a state.
type steps[S any] struct{ list []step[S] }

func (s *steps[S]) add(to S, text string, args ...uint8) {
	e := event{text: text}
	copy(e.args[:], args)
	s.list = append(s.list, step[S]{e, to})
}

// result describes an exploration.
type result struct {
	states    int             // number of distinct states visited
	depth     int             // number of events on the longest of the shortest paths
	complete  bool            // no reachable state was left out
	violation string          // the first broken invariant, or nothing
	trace     []string        // a shortest sequence of events that breaks it
	taken     map[string]bool // texts of the events that led to a new state
}

// explore visits the states of a machine breadth-first, up to limit states, and stops at the first
// violation. So the trace of a violation is one of the shortest. Visited states are remembered by a
// hash of 64 bits (Wolper and Leroy, Reliable Hashing without Collision Detection, CAV 1993): among
// 10 million states two have the same hash, so that one of them is not visited, with a probability
// of 3 in 1,000,000.
func explore[S comparable](m machine[S], limit int) result {
	seed := maphash.MakeSeed()
	start := m.initial()
	r := result{complete: true, taken: map[string]bool{}}
	var seen hashSet
	path := paths{hashes: []uint64{m.hash(&start, seed)}, parents: []int32{-1}}
	seen.add(path.hashes[0])
	level, following := []S{start}, []S(nil)
	var out steps[S]
	for first := 0; len(level) > 0; r.depth++ {
		for i := range level {
			out.list = out.list[:0]
			m.next(&level[i], &out)
			for k := range out.list {
				to := &out.list[k].to
				h := m.hash(to, seed)
				if !seen.add(h) {
					continue
				}
				r.taken[out.list[k].event.text] = true
				path.hashes = append(path.hashes, h)
				path.parents = append(path.parents, int32(first+i))
				following = append(following, *to)
				if r.violation = m.violation(to); r.violation != "" {
					r.states, r.complete = len(path.hashes), false
					r.trace = replay(m, path.to(len(path.hashes)-1), seed)
					return r
				}
			}
			if len(path.hashes) >= limit {
				r.states, r.complete = len(path.hashes), false
				return r
			}
		}
		first += len(level)
		level, following = following, level[:0]
	}
	r.states = len(path.hashes)
	return r
}

// paths has the hash of each visited state and the state from which it was reached first.
type paths struct {
	hashes  []uint64
	parents []int32
}

// to returns the hashes on the path from the initial state to a state, without the initial one.
func (p *paths) to(i int) (hashes []uint64) {
	for at := int32(i); at > 0; at = p.parents[at] {
		hashes = append([]uint64{p.hashes[at]}, hashes...)
	}
	return hashes
}

// replay takes the steps to the states with these hashes, and returns their events. The states
// that explore keeps may have other names for members and clients than their parents; replay keeps
// the names of the initial state, so the events of a trace agree with each other.
func replay[S comparable](m machine[S], hashes []uint64, seed maphash.Seed) (trace []string) {
	s := m.initial()
	var out steps[S]
	for _, want := range hashes {
		out.list = out.list[:0]
		m.next(&s, &out)
		for k := range out.list {
			if m.hash(&out.list[k].to, seed) == want {
				trace = append(trace, out.list[k].event.String())
				s = out.list[k].to
				break
			}
		}
	}
	return append(trace, m.violation(&s))
}

// walk takes random steps from the initial state, length of them at most, and returns the violation
// that it meets, with the whole trace, or a result without one.
func walk[S comparable](m machine[S], random *rand.Rand, length int) (r result) {
	s := m.initial()
	var out steps[S]
	for range length {
		out.list = out.list[:0]
		m.next(&s, &out)
		if len(out.list) == 0 {
			break
		}
		next := &out.list[random.IntN(len(out.list))]
		s = next.to
		r.states++
		r.trace = append(r.trace, next.event.String())
		if r.violation = m.violation(&s); r.violation != "" {
			r.trace = append(r.trace, r.violation)
			return r
		}
	}
	return r
}

// hashSet is a set of hashes: a table with open addressing, at most half full. Zero marks an empty
// place, so the set takes the hash 0 for 1.
type hashSet struct {
	table []uint64
	count int
}

// add reports whether the set did not have the hash before.
func (h *hashSet) add(x uint64) bool {
	x = max(x, 1)
	if 2*h.count >= len(h.table) {
		old := h.table
		h.table = make([]uint64, max(1<<12, 2*len(old)))
		for _, o := range old {
			if o != 0 {
				h.place(o)
			}
		}
	}
	if !h.place(x) {
		return false
	}
	h.count++
	return true
}

func (h *hashSet) place(x uint64) bool {
	mask := uint64(len(h.table) - 1)
	for i := x & mask; ; i = (i + 1) & mask {
		switch h.table[i] {
		case x:
			return false
		case 0:
			h.table[i] = x
			return true
		}
	}
}
