package pools

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

// TestAddressSet: the set finds what a walk over all addresses finds.
func TestAddressSet(t *testing.T) {
	t.Parallel()
	for _, base := range []string{"192.0.0.0", "2001:db8::fffe:0"} {
		for _, avoid := range []bool{false, true} {
			if avoid && strings.Contains(base, ":") {
				continue
			}
			random := rand.New(rand.NewPCG(1, 2))
			set, has := addressSet{avoid: avoid}, map[netip.Addr]bool{}
			const size = 1200
			all := make([]netip.Addr, 0, size)
			for a := netip.MustParseAddr(base); len(all) < size; a = a.Next() {
				all = append(all, a)
			}
			for round := range 6000 {
				a := all[random.IntN(size)]
				if add := random.IntN(4) > round/1000%3; add {
					set.add(a)
					has[a] = true
				} else {
					set.remove(a)
					delete(has, a)
				}
				if round%3000 == 2999 { // all of them
					for _, a := range all {
						set.add(a)
						has[a] = true
					}
				}
				from := random.IntN(size)
				to := from + random.IntN(size-from)
				want := netip.Addr{}
				for _, a := range all[from : to+1] {
					if !has[a] && !(avoid && buggy(a)) {
						want = a
						break
					}
				}
				got, there := set.first(all[from], all[to])
				if there != want.IsValid() || there && got != want {
					t.Fatalf("round %d, avoid %v, %v-%v: got %v %v, want %v", round, avoid, all[from], all[to], got,
						there, want)
				}
			}
			for _, a := range all {
				set.remove(a)
			}
			if len(set.root.children) != 0 {
				t.Errorf("%s: an empty set keeps %d nodes", base, len(set.root.children))
			}
		}
	}
}

// TestAddressSetAtTheEnds: the last address of a family has none after it.
func TestAddressSetAtTheEnds(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"255.255.255.255", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"} {
		last := netip.MustParseAddr(text)
		var set addressSet
		if a, there := set.first(last, last); !there || a != last {
			t.Errorf("%v: got %v %v", last, a, there)
		}
		set.add(last)
		if a, there := set.first(last, last); there {
			t.Errorf("%v is taken, and found: %v", last, a)
		}
	}
}
