package flowtable

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"testing"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

// These tests put the steps of several insertions and removals in every possible
// order. All keys have one home.

// actor does one step at a time; it returns true when it has done its last.
type actor interface{ step(a *arena) bool }

// inserter takes the steps of Handle.insert. Nothing expires: time stands at 0.
type inserter struct {
	attempt
	h *Handle
	k key
}

func (in *inserter) step(a *arena) bool { return in.attempt.step(in.h, a, &in.k, 0) }

// remover takes the steps of Handle.kill for one key.
type remover struct {
	record uint32
	slot   uint32
	tag    uint8
	at     int
	bit    int
}

func (r *remover) step(a *arena) bool {
	switch r.at {
	case 0:
		f := a.flow(r.record)
		f.meta.Store(uint64(f.load().Dead()))
	case 1:
		r.bit = a.forget(0, r.tag, r.slot)
	case 2:
		b, n := a.at(0, r.bit)
		b.release(n)
	}
	r.at++
	return r.at == 3
}

// orders runs every order of the actors' steps. start makes a new setup and returns the actors;
// check checks the result. An order is a list of the actors that step next. The first two actors
// are alike, so the first step is always actor 0's.
func orders(t *testing.T, start func() []actor, a *arena, check func() error) int {
	most := math.MaxInt
	if size.Race || testing.Short() {
		most = 20_000 // these tests do not need the detector
	}
	order := []int{0}
	var ready [][]bool // for each place in order: the actors that could step there
	for runs := 1; ; runs++ {
		actors := start()
		done := make([]bool, len(actors))
		ready = ready[:0]
		for at, left := 0, len(actors); left > 0; at++ {
			if at > 100 {
				t.Fatalf("no end in order %v", order)
			}
			can := make([]bool, len(actors))
			for n := range can {
				can[n] = !done[n]
			}
			ready = append(ready, can)
			if at == len(order) {
				order = append(order, slices.Index(can, true))
			}
			if actors[order[at]].step(a) {
				done[order[at]] = true
				left--
			}
		}
		if err := check(); err != nil {
			t.Fatalf("order %v: %v", order, err)
		}
		if order = following(order, ready); len(order) <= 1 || runs == most {
			return runs
		}
	}
}

// following returns the next order: it raises the last choice that can be raised.
func following(order []int, ready [][]bool) []int {
	for last := len(order) - 1; last >= 0; last-- {
		for n := order[last] + 1; n < len(ready[last]); n++ {
			if ready[last][n] {
				return append(order[:last], n)
			}
		}
	}
	return nil
}

// indexLab has records with keys, all in home 0.
type indexLab struct {
	h *Handle
	a *arena
}

func newIndexLab(t *testing.T) *indexLab {
	tb, h := testTable(t, 2, 0) // two flows have one home
	a := &tb.arenas[0]
	if a.homes != 1 {
		t.Fatalf("%d homes, want 1", a.homes)
	}
	return &indexLab{h, a}
}

func (s *indexLab) clear() {
	clear(s.a.buckets)
}

// pending makes a pending flow with the n-th key.
func (s *indexLab) pending(record uint32, n uint16) key {
	k := key{addr: [4]uint64{uint64(n)}, ports: uint32(n), proto: header.ProtoUDP}
	s.a.setAddr(record, ClientSide, &k)
	f := s.a.flow(record)
	f.ports[ClientSide].Store(k.ports)
	f.meta.Store(uint64(conn.MakeMeta(UDPNew, header.ProtoUDP, 0) | conn.MetaPending))
	return k
}

func (s *indexLab) insert(record uint32, n uint16, tag uint8) *inserter {
	k := s.pending(record, n)
	return &inserter{attempt{tag: tag, slot: slotOf(record, ClientSide), claimed: -1}, s.h, k}
}

func (s *indexLab) insertNow(record uint32, n uint16, tag uint8) {
	for in := s.insert(record, n, tag); !in.step(s.a); {
	}
}

// holders returns the records that are members with the n-th key and not dead.
func (s *indexLab) holders(n uint16) (records []uint32, err error) {
	var seen [memberBits]bool
	for m := s.a.buckets[0].ctl.Load() & memberMask; m != 0; m &= m - 1 {
		bit := bits.TrailingZeros64(m)
		b, at := s.a.at(0, bit)
		slot := b.slots[at].Load()
		if slot == 0 {
			return nil, fmt.Errorf("member %d is an empty slot", bit)
		}
		seen[bit] = true
		i := slotIndex(slot)
		if s.a.keyOf(i, ClientSide).ports == uint32(n) && s.a.flow(i).load().State() != None {
			records = append(records, i)
		}
	}
	for bit := range memberBits {
		b, at := s.a.at(0, bit)
		if b.slots[at].Load() != 0 && !seen[bit] {
			return nil, fmt.Errorf("slot %d is occupied without a pending flow", bit)
		}
	}
	return records, nil
}

// race runs two insertions of key 1, by records 1 and 2, against the other actors. Exactly
// one of the two may win, and the loser must get the slot that has the key.
func race(t *testing.T, before func(*indexLab), others func(*indexLab) []actor) {
	s := newIndexLab(t)
	var one, two *inserter
	runs := orders(t, func() []actor {
		s.clear()
		before(s)
		one, two = s.insert(1, 1, 7), s.insert(2, 1, 7)
		return append([]actor{one, two}, others(s)...)
	}, s.a, func() error {
		have, err := s.holders(1)
		if err != nil {
			return err
		}
		winners := 0
		for _, in := range []*inserter{one, two} {
			if in.result == inserted {
				winners++
			} else if in.result == full || in.holder == in.slot {
				return fmt.Errorf("loser: %v, holder %d", in.result, in.holder)
			}
		}
		if winners > 1 || len(have) != winners {
			return fmt.Errorf("%d winners, %v have the key", winners, have)
		}
		// Key 1's old owner, record 3, may have been found before it died.
		for _, in := range []*inserter{one, two} {
			if in.result == taken && in.holder != slotOf(3, ClientSide) && (len(have) == 0 ||
				in.holder != slotOf(have[0], ClientSide)) {
				return fmt.Errorf("the loser got holder %d, %v have the key", in.holder, have)
			}
		}
		return nil
	})
	t.Logf("%d orders", runs)
}

func TestEveryOrderOfTwoInsertions(t *testing.T) {
	race(t, func(*indexLab) {}, func(*indexLab) []actor { return nil })
}

// The key's old flow ends meanwhile: its slot is still a member for a moment.
func TestEveryOrderWithTheOldFlowEnding(t *testing.T) {
	race(t, func(s *indexLab) { s.insertNow(3, 1, 7) }, func(s *indexLab) []actor {
		s.a.flow(3).meta.Store(uint64(conn.MakeMeta(UDPNew, header.ProtoUDP, 0)))
		return []actor{&remover{record: 3, slot: slotOf(3, ClientSide), tag: 7}}
	})
}

// Another key's slot becomes free meanwhile and one of the two claims it, so that the other finds
// an uncommitted claim where it expects a member.
func TestEveryOrderWithASlotComingFree(t *testing.T) {
	race(t, func(s *indexLab) { s.insertNow(3, 2, 7) }, func(s *indexLab) []actor {
		return []actor{&remover{record: 3, slot: slotOf(3, ClientSide), tag: 7}}
	})
}

// Only one slot is free: claims and overflow of all four buckets. No insertion may fail while the
// chain has an empty slot.
func TestChainFills(t *testing.T) {
	s := newIndexLab(t)
	for n := range uint32(memberBits) {
		in := s.insert(n+1, uint16(n), uint8(n))
		for !in.step(s.a) {
		}
		if in.result != inserted {
			t.Fatalf("key %d of %d: %v", n, memberBits, in.result)
		}
	}
	in := s.insert(100, 100, 1)
	for !in.step(s.a) {
	}
	if in.result != full {
		t.Fatalf("key %d: %v, want full", memberBits, in.result)
	}
	(&remover{record: 20, slot: slotOf(20, ClientSide), tag: 19}).all(s.a)
	in = s.insert(101, 101, 1)
	for !in.step(s.a) {
	}
	if in.result != inserted {
		t.Fatalf("after a removal: %v", in.result)
	}
	if have, err := s.holders(101); err != nil || len(have) != 1 {
		t.Fatalf("%v have the key: %v", have, err)
	}
}

func (r *remover) all(a *arena) {
	for !r.step(a) {
	}
}

// A delayed thread continues after another flow has lived and ended in its slot: a key was
// inserted, removed, and inserted again with the same members. Only the version distinguishes the
// two ctl words.
func TestDelayedCommitFails(t *testing.T) {
	s := newIndexLab(t)
	s.insertNow(3, 2, 9)
	late := s.insert(1, 1, 7)
	late.step(s.a) // search: key 1 is not there
	late.step(s.a) // scan
	late.step(s.a) // claim
	before := late.ctl & memberMask

	// Record 3 ends; record 2 takes key 1, and gets record 3's slot.
	(&remover{record: 3, slot: slotOf(3, ClientSide), tag: 9}).all(s.a)
	s.insertNow(2, 1, 7)
	if got := s.a.buckets[0].ctl.Load() & memberMask; got != before {
		t.Fatalf("members %b, want the same %b as before", got, before)
	}
	for !late.step(s.a) {
	}
	if late.result != taken || late.holder != slotOf(2, ClientSide) {
		t.Fatalf("the delayed insertion: %v, holder %d; want taken by record 2", late.result, late.holder)
	}
	if _, err := s.holders(1); err != nil {
		t.Fatal(err)
	}
}

// Compares the tag match with a simple loop.
func TestCandidates(t *testing.T) {
	var b bucket
	for tags := range 256 {
		for n := range b.slots {
			b.slots[n].Store(0)
		}
		b.tagsLo.Store(0)
		b.tagsHi.Store(0)
		for n := range bucketSlots {
			if got, ok := b.claim(1, uint8(tags*n)); !ok || got != n {
				t.Fatalf("claim %d gave slot %d", n, got)
			}
		}
		for tag := range 256 {
			got := b.candidates(uint8(tag)) & slotMask
			for n := range bucketSlots {
				if uint8(tags*n) == uint8(tag) && got&(1<<n) == 0 {
					t.Fatalf("tag %d in slot %d not found", tag, n)
				}
			}
			// A byte one above a match may match too; nothing else.
			for m := got; m != 0; m &= m - 1 {
				if d := uint8(tags*bits.TrailingZeros64(m)) ^ uint8(tag); d > 1 {
					t.Fatalf("slot %d has tag %d, matches %d", bits.TrailingZeros64(m),
						uint8(tags*bits.TrailingZeros64(m)), tag)
				}
			}
		}
		for n := range bucketSlots {
			b.release(n)
		}
		if b.tagsLo.Load() != 0 || b.tagsHi.Load() != 0 {
			t.Fatal("release left a tag")
		}
	}
}

// A claim that is not committed is not a flow. An insertion that finds it, with a ctl loaded before
// the slot was claimed, must search again and find the committed flow.
func TestUncommittedClaimIsNotTaken(t *testing.T) {
	s := newIndexLab(t)
	s.insertNow(3, 2, 7)
	late, claimant, winner := s.insert(4, 1, 7), s.insert(1, 1, 7), s.insert(2, 1, 7)
	late.step(s.a) // search: record 3 is a member, in slot 0
	(&remover{record: 3, slot: slotOf(3, ClientSide), tag: 7}).all(s.a)
	s.h.exposed = false
	for claimant.at != committing { // claims slot 0
		claimant.step(s.a)
	}
	if !s.h.exposed {
		t.Error("a claim exposes the pending flow: others may read it")
	}
	for !winner.step(s.a) {
	}
	for _, in := range []*inserter{late, claimant} {
		for !in.step(s.a) {
		}
		if in.result != taken || in.holder != slotOf(2, ClientSide) {
			t.Errorf("record %d: %v, holder %d; want taken by record 2", slotIndex(in.slot), in.result, in.holder)
		}
	}
}
