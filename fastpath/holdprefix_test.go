package fastpath

import (
	"encoding/binary"
	"testing"

	"sluice.dev/sluice/nat/header"
)

// TestPrefixHashIsKeyed: an attacker chooses networks that would share a victim's counter if the
// hash was a multiplication by a known constant. With the keyed hash they do not.
func TestPrefixHashIsKeyed(t *testing.T) {
	network := func(n uint32) *header.Addr {
		a := header.Addr{10: 0xff, 11: 0xff}
		binary.BigEndian.PutUint32(a[12:], n<<8)
		return &a
	}
	byConstant := func(n uint32) uint8 { return uint8(uint64(n) * 0x9e3779b97f4a7c15 >> 56) }
	const victim, chosen = 0xc6_33_64, 1000
	source := newRandom([32]byte{}) // like a worker without a seed
	q := newHopQueue(1, 1, [2]uint64{source.Uint64(), source.Uint64()})
	shared, found := 0, 0
	for n := uint32(1); found < chosen; n++ {
		if byConstant(n) != byConstant(victim) || n == victim {
			continue
		}
		found++
		if q.prefixHash(network(n)) == q.prefixHash(network(victim)) {
			shared++
		}
	}
	if shared > chosen/4 { // 4 on average
		t.Errorf("%d of %d chosen networks share the victim's counter", shared, chosen)
	}
}
