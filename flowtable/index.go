package flowtable

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// bucket is one cache line of the index.
//
//	 0  ctl    members of this home, and a version (below)
//	 8  tags   11 bytes: the low byte of each slot's hash; 1 byte unused
//	20  slots  11 x (side << 31 | record number); 0 is empty
//
// A key's hash selects its home bucket. The key is in a slot of the home or, if the home is full,
// of one of the next three buckets; the four buckets are the home's chain. The home's ctl has a bit
// for each slot of the chain that holds one of its keys:
//
//	63         44 43       33 32       22 21       11 10        0
//	[  version   ][ home + 3 ][ home + 2 ][ home + 1 ][   home   ]
//
// So one load of one word shows exactly which slots a lookup must examine. One cache line shows
// that a key is absent, unless its home has overflowed, and there is no overflow flag to clear
// later.
//
// Invariants:
//
//	I1  A slot belongs to the handle that changed it from 0 (claim), until the same
//	    record's owner stores 0 (release). No other handle writes the slot or its tag.
//	I2  The ctl bit of a slot is set only by the slot's owner, by commit, and
//	    cleared only by the record's killer, before the release.
//	I3  Every commit adds one to the version.
//	I4  At any time, at most one record that is not dead has a committed slot
//	    with a given key.
//
// Commit is insertion's only linearisation point:
//
//	c := ctl; examine all members in c; a record with the key that is not dead:
//	    ctl still c? taken : again
//	claim an empty slot of the chain
//	compare-and-swap ctl from c to c + the slot's bit + one version, or again
//
// Why I4 holds: the swap succeeds only if ctl was c all the time since the load (see below about
// the version). So the members examined were all members, their slots did not change (I1 and I2),
// none had the key, and dead records stay dead. Why "taken" is true: the bit was set all the time,
// so the slot that was read was committed. A claim that is not committed never counts as a key, so
// exactly one of two handles that race for one key wins. Lock-free: every "again" means that
// another handle's commit or kill succeeded. A thread that is stopped at any point blocks no other:
// it leaves at most one slot occupied. No thread completes another's insert, so no late write can
// restore an old slot.
//
// Version: the swap could mistake a later ctl for c only if 2^20 keys were committed to this one
// home in between. Every commit is for one of a record's two keys (a port that is taken commits
// nothing), and no record is reused while the handle that loaded c stays online. So at most all of
// the arena's records could be committed: about five keys per home, as the hash is keyed.
//
// Lookup: load ctl, compare the members. It finds each flow that was live at the load and still is
// live: its slot was written before its bit (the load of ctl pairs with the commit's swap). A slot
// that was released and claimed again meanwhile names another record, whose key does not match, or
// a pending flow, which is skipped.
type bucket struct {
	ctl    atomic.Uint64
	tagsLo atomic.Uint64 // slots 0 to 7
	tagsHi atomic.Uint32 // slots 8 to 10
	slots  [bucketSlots]atomic.Uint32
}

const (
	bucketSlots  = 11
	chainBuckets = 4
	memberBits   = bucketSlots * chainBuckets
	memberMask   = 1<<memberBits - 1
	slotMask     = 1<<bucketSlots - 1
	versionOne   = 1 << memberBits

	slotSide = 31 // the slot's bit for the side of the record's key

	bucketBytes = 64
	_           = -(unsafe.Sizeof(bucket{}) ^ bucketBytes)
)

func slotOf(index uint32, side Side) uint32 { return index | uint32(side)<<slotSide }
func slotIndex(slot uint32) uint32          { return slot &^ (1 << slotSide) }
func slotSideOf(slot uint32) Side           { return Side(slot >> slotSide) }

// candidates returns a bit for each slot whose tag matches, and rarely a bit for another slot.
func (b *bucket) candidates(tag uint8) uint64 {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	pattern := uint64(tag) * ones
	lo := b.tagsLo.Load() ^ pattern
	hi := uint64(b.tagsHi.Load()) ^ pattern&0xffffffff
	// A byte that is zero borrows from its top bit.
	lo = (lo - ones) &^ lo & tops
	hi = (hi - ones) &^ hi & tops
	// Gather the top bits of eight bytes in one byte.
	const gather = 0x0102040810204080
	return (lo>>7)*gather>>56 | (hi>>7)*gather>>56<<8
}

// claim takes an empty slot, with its tag.
func (b *bucket) claim(slot uint32, tag uint8) (n int, ok bool) {
	for n := range b.slots {
		if s := &b.slots[n]; s.Load() == 0 && s.CompareAndSwap(0, slot) {
			if n < 8 {
				b.tagsLo.Or(uint64(tag) << (n * 8))
			} else {
				b.tagsHi.Or(uint32(tag) << (n*8 - 64))
			}
			return n, true
		}
	}
	return 0, false
}

// release frees a slot. Its ctl bit must not be set.
func (b *bucket) release(n int) {
	if n < 8 {
		b.tagsLo.And(^(uint64(0xff) << (n * 8)))
	} else {
		b.tagsHi.And(^(uint32(0xff) << (n*8 - 64)))
	}
	b.slots[n].Store(0)
}

// arena is the records of one family and their index. Records are numbered from 1.
type arena struct {
	v6      bool
	buckets []bucket // homes, then chainBuckets-1 more for the overflow of the last homes
	homes   uint64
	four    []record4
	six     []record6
	flows   uint32 // how many may live
	records uint32 // all records: flows and the reserve
	// indexBits is the number of bits of the highest record number.
	indexBits uint

	freed stack         // magazines of free records
	fresh atomic.Uint32 // records from here on were never used
}

func (a *arena) flow(index uint32) *Flow {
	if a.v6 {
		return &a.six[index].Flow
	}
	return &a.four[index].Flow
}

func (a *arena) ref(index uint32) Ref {
	if a.v6 {
		return Ref(index) | refV6
	}
	return Ref(index)
}

func (a *arena) home(hash uint64) uint64 { return (hash >> 32) * a.homes >> 32 }

// first returns the address of the first bucket.
func (a *arena) first() *byte { return (*byte)(unsafe.Pointer(&a.buckets[0])) }

// at returns the bucket and slot number of a member bit.
func (a *arena) at(home uint64, bit int) (*bucket, int) {
	return &a.buckets[home+uint64(bit/bucketSlots)], bit % bucketSlots
}

// same reports whether the record's key equals k. The ports of a live flow are final; for a pending
// flow the result is valid if the slot is a member (see bucket).
func (a *arena) same(slot uint32, k *key) bool {
	i, side := slotIndex(slot), slotSideOf(slot)
	if !a.v6 {
		r := &a.four[i]
		return r.ports[side].Load() == k.ports && r.addr[side] == k.addr[0]
	}
	r := &a.six[i]
	return r.ports[side].Load() == k.ports && r.addr[side] == k.addr
}

// keyOf returns a record's key on one side.
func (a *arena) keyOf(index uint32, side Side) (k key) {
	f := a.flow(index)
	k.proto, k.ports = f.load().Proto(), f.ports[side].Load()
	if a.v6 {
		k.addr = a.six[index].addr[side]
	} else {
		k.addr[0] = a.four[index].addr[side]
	}
	return k
}

// holder searches the members in ctl value c for a record that has the key and is not dead. It
// returns the record's slot value, or 0. A held record (group.go) is dead on the client's side.
func (a *arena) holder(home, c uint64, tag uint8, k *key) uint32 {
	for b, members := home, c&memberMask; members != 0; b, members = b+1, members>>bucketSlots {
		bk := &a.buckets[b]
		for m := bk.candidates(tag) & members & slotMask; m != 0; m &= m - 1 {
			slot := bk.slots[bits.TrailingZeros64(m)].Load()
			if slot == 0 {
				continue
			}
			m := a.flow(slotIndex(slot)).load()
			if m.State() != None && m.Proto() == k.proto && a.same(slot, k) && !(m.Held() && slot>>slotSide == 0) {
				return slot
			}
		}
	}
	return 0
}

// insertion is the result of an insert.
type insertion uint8

const (
	inserted insertion = iota
	taken              // a flow has the key
	full               // no empty slot in the chain: see makeRoom
)

// insert commits a key of the caller's pending flow. If another flow has the key, insert kills that
// flow if it is expired, and otherwise returns its slot value.
func (h *Handle) insert(a *arena, hash uint64, k *key, slot uint32, now Ticks) (uint32, insertion) {
	op := attempt{home: a.home(hash), tag: uint8(hash), slot: slot, claimed: -1}
	for !op.step(h, a, k, now) {
	}
	return op.holder, op.result
}

// attempt is an insertion in progress.
type attempt struct {
	home    uint64
	ctl     uint64 // as last loaded
	slot    uint32 // the slot value to insert
	holder  uint32 // the slot value of the record that has the key, from scanning
	claimed int    // member bit of the slot that is claimed, or -1
	tag     uint8
	at      stage
	result  insertion
}

type stage uint8

const (
	searching stage = iota
	scanning
	confirming
	claiming
	committing
)

// step does the next step of the attempt, and reports whether it is done. Each step has one access
// to shared memory, so that tests can run the steps of several attempts in every order.
func (op *attempt) step(h *Handle, a *arena, k *key, now Ticks) (done bool) {
	ctl := &a.buckets[op.home].ctl
	switch op.at {
	case searching:
		op.ctl = ctl.Load()
		op.at = scanning
	case scanning:
		op.holder = a.holder(op.home, op.ctl, op.tag, k)
		op.at = claiming
		if op.holder != 0 {
			op.at = confirming
		} else if op.claimed >= 0 {
			op.at = committing
		}
	case confirming:
		if ctl.Load() == op.ctl && !h.expire(a, slotIndex(op.holder), now) {
			op.cancel(a)
			op.result = taken
			return true
		}
		op.at = searching
	case claiming:
		if op.claimed = a.claim(op.home, op.slot, op.tag); op.claimed < 0 {
			op.result = full
			return true
		}
		h.exposed = true
		op.at = committing
	case committing:
		if op.commit(ctl) {
			op.holder, op.result = op.slot, inserted
			return true
		}
		op.at = searching
	}
	return false
}

// commit makes the key visible. Its swap publishes the record, the slot and the tag, and pairs with
// every load of ctl.
func (op *attempt) commit(ctl *atomic.Uint64) bool {
	members := op.ctl&memberMask | 1<<op.claimed
	version := op.ctl&^memberMask + versionOne
	return ctl.CompareAndSwap(op.ctl, version|members)
}

func (op *attempt) cancel(a *arena) {
	if op.claimed >= 0 {
		b, n := a.at(op.home, op.claimed)
		b.release(n)
	}
}

// claim takes an empty slot of a home's chain and returns its member bit, or -1.
func (a *arena) claim(home uint64, slot uint32, tag uint8) int {
	for k := range chainBuckets {
		if n, ok := a.buckets[home+uint64(k)].claim(slot, tag); ok {
			return k*bucketSlots + n
		}
	}
	return -1
}

// remove removes a committed key from the index. Only the handle that killed the record may call
// it.
func (a *arena) remove(hash uint64, slot uint32) {
	home := a.home(hash)
	bit := a.forget(home, uint8(hash), slot)
	b, n := a.at(home, bit)
	b.release(n)
}

// forget clears a member bit, and returns it. The caller still owns the slot.
func (a *arena) forget(home uint64, tag uint8, slot uint32) (bit int) {
	ctl := &a.buckets[home].ctl
	c := ctl.Load()
	if bit = a.position(home, c, tag, slot); bit < 0 {
		panic(
			"flowtable: a killed flow's key is not in the index: some other thread released its slot; find who " +
				"wrote a slot it had not claimed",
		)
	}
	for !ctl.CompareAndSwap(c, c&^(1<<bit)) {
		c = ctl.Load()
	}
	return bit
}

// position returns the member bit of a slot value, or -1.
func (a *arena) position(home, c uint64, tag uint8, slot uint32) int {
	for k, members := 0, c&memberMask; members != 0; k, members = k+1, members>>bucketSlots {
		b := &a.buckets[home+uint64(k)]
		for m := b.candidates(tag) & members & slotMask; m != 0; m &= m - 1 {
			if n := bits.TrailingZeros64(m); b.slots[n].Load() == slot {
				return k*bucketSlots + n
			}
		}
	}
	return -1
}
