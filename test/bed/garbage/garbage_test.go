package garbage

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
)

// flows are one of each family, and a judge that knows them.
func flows() ([]*Flow, *Judge) {
	end := netip.MustParseAddrPort
	list := []*Flow{
		{Proto: protoTCP, Client: end("198.51.100.7:40000"), VIP: end("203.0.113.10:80"), SNAT: end("10.0.1.2:20000"),
			Server: end("10.0.1.11:8080")},
		{Proto: protoTCP, Client: end("[2001:db8:c::7]:40000"), VIP: end("[2001:db8:f::10]:80"),
			SNAT: end("[2001:db8:1::2]:20000"), Server: end("[2001:db8:1::11]:8080")},
	}
	var vips, sources, servers []netip.Addr
	for _, f := range list {
		vips, sources, servers = append(vips, f.VIP.Addr()), append(sources, f.SNAT.Addr()), append(servers,
			f.Server.Addr())
	}
	return list, NewJudge(vips, sources, servers)
}

// pair is a packet of a client, and what becomes of it.
func pair(f *Flow) (in, out []byte) {
	return between(f.Proto, f.Client, f.VIP).Bytes(), translated(f.Proto, f.SNAT, f.Server)
}

func translated(proto uint8, src, dst netip.AddrPort) []byte {
	p := between(proto, src, dst)
	p.TTL = 63
	return p.Bytes()
}

// TestJudgeAccepts what a translator does, in both directions.
func TestJudgeAccepts(t *testing.T) {
	list, j := flows()
	for _, f := range list {
		in, out := pair(f)
		if err := j.Forwarded(in, out); err != nil {
			t.Error(err)
		}
		if err := j.Forwarded(between(f.Proto, f.Server, f.SNAT).Bytes(),
			translated(f.Proto, f.VIP, f.Client)); err != nil {
			t.Error(err)
		}
	}
}

// TestJudgeDetectsEachChangedByte: also those whose checksum is made right again.
func TestJudgeDetectsEachChangedByte(t *testing.T) {
	list, _ := flows()
	for _, f := range list {
		in, out := pair(f)
		for at := 12; at < len(out); at++ {
			for _, seal := range []bool{false, true} {
				_, j := flows()
				changed := slices.Clone(out)
				changed[at] ^= 0x21
				if seal {
					sealIPv4(changed)
					sealTransport(changed)
				}
				l4 := len(out) - 42
				if port := at - l4; port == 0 || port == 1 || port == 2 || port == 3 || bytes.Equal(changed, out) {
					continue // any port of ours may be the source's; which is the server's it cannot know
				}
				if err := j.Forwarded(in, changed); err == nil && (seal || at < l4+16 || at > l4+17) {
					t.Errorf("byte %d of %x changed, sealed %v", at, out, seal)
				} else if err == nil {
					t.Errorf("the checksum changed at %d", at)
				}
			}
		}
	}
}

// TestJudgeKeepsAnswersApart: an answer goes to its own client, from the VIP that it spoke to.
func TestJudgeKeepsAnswersApart(t *testing.T) {
	list, j := flows()
	f := list[0]
	in, out := pair(f)
	if err := j.Forwarded(in, out); err != nil {
		t.Fatal(err)
	}
	answer := between(f.Proto, f.Server, f.SNAT).Bytes()
	other := netip.MustParseAddrPort("198.51.100.8:40000")
	for name, bad := range map[string][]byte{
		"another client": translated(f.Proto, f.VIP, other), "the server's address": translated(f.Proto, f.Server,
			f.Client),
		"another port": translated(f.Proto, f.VIP, netip.AddrPortFrom(f.Client.Addr(), 1)),
	} {
		if j.Forwarded(answer, bad) == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// TestSourceRepeats: the same seed makes the same frames, and another one others.
func TestSourceRepeats(t *testing.T) {
	list, _ := flows()
	var runs [3][][]byte
	for i, seed := range []uint64{1, 1, 2} {
		s := New(seed)
		s.Aim(list)
		for range 2000 {
			runs[i] = append(runs[i], s.Next().Bytes)
		}
	}
	if !slices.EqualFunc(runs[0], runs[1], bytes.Equal) || slices.EqualFunc(runs[0], runs[2], bytes.Equal) {
		t.Error("frames do not follow from the seed alone")
	}
}

// TestEveryClassHasGoodAndBad: of each class some packets would be refused, and some would not.
// Errors, steps of walks and sizes are all packets that a receiver takes.
func TestEveryClassHasGoodAndBad(t *testing.T) {
	list, _ := flows()
	s := New(1)
	s.Aim(list)
	for c := range NumClasses {
		good, bad := 0, 0
		for n := 0; n < min(c.Count(), 40_000); n++ {
			if Refused(s.Frame(c, n, list[family(c.V6(n%2 == 1))], n%4 < 2).Bytes) == nil {
				good++
			} else {
				bad++
			}
		}
		t.Logf("%-12v %8d; of the first, %d are good, %d are refused", c, c.Count(), good, bad)
		if good == 0 || bad == 0 && c != ICMP && c != Sequences && c != Sizes {
			t.Errorf("%v: %d good, %d refused", c, good, bad)
		}
	}
}
