//go:build root

package xdpprog

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestPlainEqualsTagged: a VLAN tag changes no verdict, and a tagged frame does not use read_plain.
// So every frame, and many frames that differ from one in a few bytes, must get the same verdict
// with and without a tag.
func TestPlainEqualsTagged(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var corpus [][]byte
	for _, c := range verdictCases() {
		corpus = append(corpus, c.p.frame())
	}
	for _, unserved := range []bool{false, true} {
		b := newRig(t, Settings{SNATFirst: snatFirst, SNATCount: snatCount, Unserved: unserved}, fixture())
		b.beat(time.Second)
		passed, steered := 0, 0
		compare := func(frame []byte) {
			if typ := uint16(frame[12])<<8 | uint16(frame[13]); typ == 0x8100 || typ == 0x88a8 {
				return
			}
			plain, tagged := b.fate(t, frame), b.fate(t, slices.Insert(slices.Clone(frame), 12, 0x81, 0, 0, 7))
			if plain != tagged {
				t.Fatalf("%x: %+v, and %+v with a tag", frame, plain, tagged)
			}
			if plain.Passed > 0 {
				passed++
			} else {
				steered++
			}
		}
		for _, frame := range corpus {
			compare(frame)
			for range 100 {
				compare(mutate(r, frame, corpus))
			}
		}
		t.Logf("unserved %v: %d passed, %d steered", unserved, passed, steered)
		if passed < 1000 || steered < 1000 {
			t.Error("too few of one kind for this test")
		}
	}
}

// mutate changes one to three bits or bytes of the headers, sometimes replaces the bytes from some
// offset on by those of another frame, and sometimes cuts the frame.
func mutate(r *rand.Rand, frame []byte, corpus [][]byte) []byte {
	m := slices.Clone(frame)
	if r.IntN(4) == 0 {
		from, other := r.IntN(len(m)), corpus[r.IntN(len(corpus))]
		copy(m[from:], other[min(from, len(other)):])
	}
	for range r.IntN(4) {
		switch at := r.IntN(min(len(m), 14+40+4)); r.IntN(2) {
		case 0:
			m[at] ^= 1 << r.IntN(8)
		case 1:
			m[at] = byte(r.IntN(256))
		}
	}
	if r.IntN(8) == 0 {
		m = m[:14+r.IntN(len(m)-14)]
	}
	return m
}

// fate returns the changes of the counters for one packet.
func (b *rig) fate(t *testing.T, frame []byte) Counters {
	t.Helper()
	before, err := b.Counters()
	must(t, err)
	run(t, b.steer, frame, nil)
	after, err := b.Counters()
	must(t, err)
	return Counters{
		Steered: after.Steered - before.Steered, Passed: after.Passed - before.Passed,
		MissedDropped: after.MissedDropped - before.MissedDropped,
		MissedPassed:  after.MissedPassed - before.MissedPassed,
		ForeignPassed: after.ForeignPassed - before.ForeignPassed,
	}
}

// TestFrontendAmongOtherPorts: a frontend's port may also be a reply port or an open node port, and
// its address may or may not accept these.
func TestFrontendAmongOtherPorts(t *testing.T) {
	ports := []uint16{snatFirst, 30080, 443}
	rules := Rules{Addrs: fixture().Addrs, NodePorts: fixture().NodePorts}
	for _, a := range []string{vip4, vip6, node4, node6, snat4, snat6, plain4} {
		for _, port := range ports {
			rules.Frontends = append(rules.Frontends, key(a, tcp, port))
		}
	}
	b := newRig(t, Settings{SNATFirst: snatFirst, SNATCount: snatCount}, rules)
	b.beat(time.Second)
	for _, k := range rules.Frontends {
		p := pkt{src: client4, dst: k.Addr.String(), proto: tcp, dport: k.Port}
		if k.Addr.Netip().Is6() {
			p.src = client6
		}
		if got := b.wants(t, p.frame()); got != steers {
			t.Errorf("%v: verdict %d, want steered", k, got)
		}
	}
	for _, a := range []string{bareVIP4, local4} {
		for _, port := range ports {
			if got := b.wants(t, (&pkt{src: client4, dst: a, proto: tcp, dport: port}).frame()); got != kernel {
				t.Errorf("%s port %d, no frontend: verdict %d, want pass to the kernel", a, port, got)
			}
		}
	}
}
