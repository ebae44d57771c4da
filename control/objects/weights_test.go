package objects

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
)

// firstMatch is WeightTable.Weight by a comparison with each rule in turn.
func (rs WeightRules) firstMatch(a header.Addr, node, zone string) int32 {
	for i := range rs {
		r := &rs[i]
		if r.node != "" && r.node == node || r.zone != "" && r.zone == zone ||
			r.prefix.IsValid() && r.prefix.Contains(a.Netip()) {
			return int32(r.weight)
		}
	}
	return -1
}

// TestWeightTable: the first rule that matches counts, among names and prefixes within each other.
func TestWeightTable(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	addr := func() string {
		if r.IntN(3) == 0 {
			return fmt.Sprintf("fd00::%x:%x", r.IntN(4), r.IntN(4))
		}
		return fmt.Sprintf("10.%d.%d.%d", r.IntN(2), r.IntN(4), r.IntN(8))
	}
	for range 300 {
		var entries []string
		for i := range r.IntN(30) {
			match := fmt.Sprintf("node:%d", r.IntN(6))
			switch r.IntN(4) {
			case 0:
				match = fmt.Sprintf("zone:%d", r.IntN(3))
			case 1:
				match = addr()
			case 2:
				match = addr()
				if strings.Contains(match, ":") {
					match += fmt.Sprintf("/%d", r.IntN(129))
				} else {
					match += fmt.Sprintf("/%d", r.IntN(33))
				}
			}
			entries = append(entries, fmt.Sprintf("%s=%d", match, i))
		}
		text := strings.Join(entries, ",")
		rules, _ := readWeights(map[string]string{annotationWeights: text})
		table := rules.Table()
		for range 100 {
			a, err := parseAddr(addr())
			if err != nil {
				t.Fatal(err)
			}
			node, zone := fmt.Sprint(r.IntN(7)), fmt.Sprint(r.IntN(4))
			if r.IntN(4) == 0 {
				node, zone = "", ""
			}
			if got, want := table.Weight(header.AddrFrom(a), node, zone),
				rules.firstMatch(header.AddrFrom(a), node, zone); got != want {
				t.Fatalf("%v on node %q in zone %q: %d, want %d, by %s", a, node, zone, got, want, text)
			}
		}
	}
}

// BenchmarkWeights finds the weights of the 1,000 endpoints of a slice by 1,000 rules.
func BenchmarkWeights(b *testing.B) {
	for name, format := range map[string]string{"nodes": "node:n%[1]d=2", "prefixes": "10.0.%[2]d.%[3]d/30=2"} {
		var entries []string
		for i := range maxWeightRules {
			entries = append(entries, fmt.Sprintf(format, i, i>>6, i<<2&0xff))
		}
		rules, problems := readWeights(map[string]string{annotationWeights: strings.Join(entries, ",")})
		if len(rules) != maxWeightRules {
			b.Fatal(len(rules), problems)
		}
		var nodes []string
		for i := range 1000 {
			nodes = append(nodes, fmt.Sprintf("n%d", i))
		}
		weigh := func(b *testing.B, weight func(header.Addr, string, string) int32) {
			for i, node := range nodes {
				if weight(header.AddrFrom4([4]byte{10, 0, byte(i >> 6), byte(i << 2)}), node, "z") != 2 {
					b.Fatal(i)
				}
			}
		}
		b.Run("table/"+name, func(b *testing.B) {
			for b.Loop() {
				weigh(b, rules.Table().Weight)
			}
		})
		b.Run("rule by rule/"+name, func(b *testing.B) {
			for b.Loop() {
				weigh(b, rules.firstMatch)
			}
		})
	}
}
