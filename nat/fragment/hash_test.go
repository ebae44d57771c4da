package fragment

import (
	"testing"

	"sluice.dev/sluice/nat/header"
)

// The vector of the SipHash paper, appendix A: key 00..0f, input 00..0e.
func TestSipHashVector(t *testing.T) {
	s := newSip([2]uint64{0x0706050403020100, 0x0f0e0d0c0b0a0908})
	s.add(0x0706050403020100)
	s.add(0x0f0e0d0c0b0a0908) // fifteen bytes, and the length in the sixteenth
	if got := s.sum(); got != 0xa129ca6149be45e5 {
		t.Errorf("%#x, want 0xa129ca6149be45e5", got)
	}
}

func TestPermuteIsOneToOne(t *testing.T) {
	seen := make([]bool, 1<<16)
	for x := range 1 << 16 {
		y := permute([2]uint64{1, 2}, uint16(x))
		if seen[y] {
			t.Fatalf("%d occurs twice", y)
		}
		seen[y] = true
	}
}

// The key depends on every part of a datagram's identity, and on the secret.
func TestKeyDependsOnEveryPart(t *testing.T) {
	base := header.Packet{FragmentID: 7}
	base.Tuple.Proto = header.ProtoUDP
	secret := [2]uint64{1, 2}
	keys := map[uint64]string{datagramKey(secret, &base): "base"}
	add := func(name string, key uint64) {
		t.Helper()
		if other, ok := keys[key]; ok {
			t.Errorf("%s has the key of %s", name, other)
		}
		keys[key] = name
	}
	for i := range base.Tuple.Src {
		p := base
		p.Tuple.Src[i] = 1
		add("source", datagramKey(secret, &p))
		p = base
		p.Tuple.Dst[i] = 1
		add("destination", datagramKey(secret, &p))
	}
	for bit := range 32 {
		p := base
		p.FragmentID ^= 1 << bit
		add("identification", datagramKey(secret, &p))
	}
	p := base
	p.Tuple.Proto = header.ProtoTCP
	add("protocol", datagramKey(secret, &p))
	p.Tuple.V6, p.Tuple.Src[0] = true, 2
	v6 := datagramKey(secret, &p)
	add("an IPv6 source", v6)
	if p.Tuple.Proto = header.ProtoUDP; datagramKey(secret, &p) != v6 {
		t.Error("over IPv6, the protocol changed the key (RFC 8200 section 4.5)")
	}
	add("secret", datagramKey([2]uint64{1, 3}, &base))

	same := base // the fields in which fragments of one datagram differ
	same.FragmentOffset, same.Tuple.SrcPort, same.TTL = 8, 99, 3
	if keys[datagramKey(secret, &same)] != "base" {
		t.Error("offset, ports or TTL changed the key")
	}
}
