package pipeline

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strconv"

	"sluice.dev/sluice/nat/header"
)

const (
	collidingFlows   = 16_384
	collisionsTarget = 1.2
	// searchBits is the number of equal low bits of a hash that is searched by trial: one bucket of
	// a table with 2^searchBits buckets.
	searchBits = 16
)

// collisions compares flows whose tuples collide under another program's table hash with flows of
// random tuples.
func (r *runner) collisions() error {
	seen := tuple4{dst: vipBase4, dstPort: frontendPort}
	plain, err := r.flowsOf(randomTuples(collidingFlows, seen, r.rnd))
	if err != nil {
		return err
	}
	defer plain.w.close()
	for _, h := range []struct {
		name string
		find func() []tuple4
	}{
		{"crc32c", func() []tuple4 { return linearSet(crcHash, collidingFlows, seen, r.rnd) }},
		{"toeplitz", func() []tuple4 { return linearSet(toeplitzHash, collidingFlows, seen, r.rnd) }},
		{"jhash", func() []tuple4 { return searchedSet(jenkinsHash, searchBits, collidingFlows, seen, r.rnd) }},
	} {
		r.say("collisions: looking for tuples of one %s", h.name)
		if err := r.collide(plain, h.name, h.find()); err != nil {
			return fmt.Errorf("%s: %w", h.name, err)
		}
	}
	return nil
}

func (r *runner) collide(plain *gate, name string, set []tuple4) error {
	g, err := r.flowsOf(set)
	if err != nil {
		return err
	}
	defer g.w.close()
	return r.inTurns(pair{
		params: map[string]string{"scenario": "collisions", "family": "ipv4", "flows": strconv.Itoa(collidingFlows),
			"against": name},
		name: "tuples", base: "random", other: "colliding", better: "lower", target: collisionsTarget,
		baseCost: r.lookups(plain), otherCost: r.lookups(g),
	})
}

// flowsOf opens UDP flows of these tuples.
func (r *runner) flowsOf(set []tuple4) (*gate, error) {
	return populated(worldConfig{services: 1, backends: 64, capacity: roomFor(len(set))}, func(w *world) []flow {
		for _, t := range set {
			w.flows = append(w.flows, flow{client: t.src, clientPort: t.srcPort, proto: header.ProtoUDP})
		}
		return w.flows
	})
}

// possible reports whether a tuple can be a client's, and uses none of our own addresses. Its
// packets must be plain (header.Plain4): other packets cost four times as much, with any hash.
func (t tuple4) possible() bool {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], t.src)
	a := header.AddrFrom4(b)
	switch {
	case t.srcPort == 0 || !header.Unicast(&a):
		return false
	case t.src>>24 == podBase4>>24, t.src>>8 == snatBase4>>8, t.src>>8 == 0xc00000, t.src>>17 == vipBase4>>17:
		return false
	}
	return true
}

func randomTuples(n int, like tuple4, rnd *rand.Rand) (set []tuple4) {
	known := map[tuple4]bool{}
	for len(set) < n {
		t := like
		t.src, t.srcPort = rnd.Uint32(), uint16(rnd.Uint32())
		if t.possible() && !known[t] {
			known[t] = true
			set = append(set, t)
		}
	}
	return set
}

// clientBits are the bits that the client chooses: address and port.
const clientBits = 48

func (t tuple4) flipped(clientSide uint64) tuple4 {
	t.src ^= uint32(clientSide >> 16)
	t.srcPort ^= uint16(clientSide)
	return t
}

// linearSet returns tuples with the same value of a hash that is affine over GF(2): a flip of bits
// that keeps the hash of one tuple keeps the hash of every tuple. Of 48 bits that a client chooses,
// 32 fix the value; the other 16 give 65,536 tuples.
func linearSet(hash func(tuple4) uint32, n int, like tuple4, rnd *rand.Rand) (set []tuple4) {
	null := nullSpace(hash, like)
	for len(set) < n { // repeated with another base if too many of its tuples are impossible
		set = set[:0]
		base := like.flipped(rnd.Uint64() >> 16)
		for i := range uint64(1) << len(null) {
			t := base
			for m := i; m != 0; m &= m - 1 {
				t = t.flipped(null[bits.TrailingZeros64(m)])
			}
			if t.possible() && len(set) < n {
				set = append(set, t)
			}
		}
	}
	return set
}

// nullSpace returns a basis of the flips of a client's bits that do not change the hash.
func nullSpace(hash func(tuple4) uint32, like tuple4) (null []uint64) {
	type row struct {
		effect uint32
		flips  uint64
	}
	var pivots [32]row
	for bit := range clientBits {
		x := row{flips: 1 << bit}
		x.effect = hash(like) ^ hash(like.flipped(x.flips))
		for x.effect != 0 {
			p := &pivots[bits.Len32(x.effect)-1]
			if p.effect == 0 {
				*p = x
				break
			}
			x.effect ^= p.effect
			x.flips ^= p.flips
		}
		if x.effect == 0 {
			null = append(null, x.flips)
		}
	}
	return null
}

// searchedSet returns tuples whose hashes have the same low bits, by trying all ports of one
// address after the other. Addresses are random: a run of consecutive addresses may be impossible,
// and too long to skip.
func searchedSet(hash func(tuple4) uint32, low, n int, like tuple4, rnd *rand.Rand) (set []tuple4) {
	mask := uint32(1)<<low - 1
	want := hash(like.flipped(rnd.Uint64()>>16)) & mask
	tried := map[uint32]bool{}
	for len(set) < n {
		t := like
		t.src, t.srcPort = rnd.Uint32(), 1
		if tried[t.src] || !t.possible() {
			continue
		}
		tried[t.src] = true
		for port := 1; port < 1<<16 && len(set) < n; port++ {
			t.srcPort = uint16(port)
			if hash(t)&mask == want {
				set = append(set, t)
			}
		}
	}
	return set
}
