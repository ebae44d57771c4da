//go:build root

package xdpprog

import (
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
)

// TestSteersEqualsTheProgram: packets between all ends of the fixture, with all ports that have a
// rule. The Match from the kernel's maps and the Match from the rules alone agree with the program.
func TestSteersEqualsTheProgram(t *testing.T) {
	ends := [2][]string{
		{vip4, bareVIP4, nodeVIP4, node4, local4, snat4, own4, client4, kept4, plain4},
		{vip6, node6, local6, snat6, own6, client6, kept6, plain6},
	}
	sources := []uint16{999, 8080, 9}
	destinations := []uint16{80, 53, 9, 22, 30080, 30053, 30009, 30019, 65535, snatFirst - 1, keptReply,
		snatFirst, snatFirst + snatCount - 1, snatFirst + snatCount}
	for _, unserved := range []bool{false, true} {
		settings := Settings{SNATFirst: snatFirst, SNATCount: snatCount, Unserved: unserved}
		rules := fixture()
		rules.Addrs[addr(plain4)] = AddrVIP | AddrLocal
		rules.Sources = append(rules.Sources, key(snat4, tcp, 8080))
		b := newRig(t, settings, rules)
		b.beat(time.Second)
		reported := map[Match]int{}
		eachTuple(ends, sources, destinations, func(p *pkt, tuple *header.Tuple) {
			got, err := b.Steers(tuple)
			if err != nil {
				t.Fatal(err)
			}
			if r := rules.Steers(tuple, settings); r != got {
				t.Fatalf("%+v: by the kernel's maps %v, by the rules %v", *p, got, r)
			}
			if does := b.wants(t, p.frame())&steers != 0; does != (got != MatchNone) {
				t.Fatalf("unserved %v, %+v: Match %v, the program takes it: %v", unserved, *p, got, does)
			}
			reported[got]++
		})
		for m := MatchNone; m <= MatchSource; m++ {
			if reported[m] == 0 {
				t.Errorf("unserved %v: no packet by %v", unserved, m)
			}
		}
	}
}

func eachTuple(ends [2][]string, sources, destinations []uint16, f func(*pkt, *header.Tuple)) {
	for family, list := range ends {
		for _, src := range list {
			for _, dst := range list {
				for _, proto := range nodePortProtos {
					for _, sport := range sources {
						for _, dport := range destinations {
							f(&pkt{src: src, dst: dst, proto: proto, sport: sport, dport: dport},
								&header.Tuple{Src: addr(src), Dst: addr(dst), SrcPort: sport, DstPort: dport,
									Proto: proto, V6: family == 1})
						}
					}
				}
			}
		}
	}
}
