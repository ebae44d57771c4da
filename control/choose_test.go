package control

import (
	"fmt"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/fastpath/services"
)

// TestConditions goes through all 27 combinations of conditions against the
// rules in words.
func TestConditions(t *testing.T) {
	yes, no := true, false
	all := []*bool{nil, &yes, &no}
	is := func(b *bool, ifNil bool) bool { return b == nil && ifNil || b != nil && *b }
	for _, ready := range all {
		for _, serving := range all {
			for _, terminating := range all {
				got := conditions(&discoveryv1.EndpointConditions{Ready: ready, Serving: serving, Terminating: terminating})
				var want services.BackendFlags
				if is(ready, true) {
					want |= services.BackendReady
				}
				if is(serving, true) || is(ready, true) {
					want |= services.BackendServing
				}
				if is(terminating, false) {
					want |= services.BackendTerminating
				}
				if got != want {
					t.Errorf("ready %v, serving %v, terminating %v: got %05b, want %05b", show(ready), show(serving), show(terminating), got, want)
				}
			}
		}
	}
}

func show(b *bool) string {
	if b == nil {
		return "nil"
	}
	return fmt.Sprint(*b)
}

// TestChoose goes through every pair of endpoints, and each alone, under both
// policies, against the rules written as four plain questions.
func TestChoose(t *testing.T) {
	const states = 1 << 5
	for a := range states {
		for b := -1; b < states; b++ {
			members := []member{{flags: services.BackendFlags(a), ref: 1}}
			if b >= 0 {
				members = append(members, member{flags: services.BackendFlags(b), ref: 2})
			}
			for _, local := range []bool{false, true} {
				got, empty := choose(members, local, nil)
				want, wantEmpty := chooseSlowly(members, local)
				if fmt.Sprint(got) != fmt.Sprint(want) || len(want) == 0 && empty != wantEmpty {
					t.Fatalf("%05b and %05b, local %v: got %v %v, want %v %v", a, b, local, got, empty, want, wantEmpty)
				}
			}
		}
	}
}

func chooseSlowly(members []member, local bool) (chosen []services.BackendRef, empty services.Empty) {
	has := func(m member, f services.BackendFlags) bool { return m.flags&f != 0 }
	usableSomewhere, anyReady := false, false
	for _, m := range members {
		here := !local || has(m, services.BackendLocal)
		drained := has(m, services.BackendDrained)
		isReady := has(m, services.BackendReady) && !drained
		fallback := has(m, services.BackendServing) && has(m, services.BackendTerminating) && !drained
		usableSomewhere = usableSomewhere || isReady || fallback
		anyReady = anyReady || isReady && here
	}
	for _, m := range members {
		if local && !has(m, services.BackendLocal) || has(m, services.BackendDrained) {
			continue
		}
		if anyReady && has(m, services.BackendReady) ||
			!anyReady && has(m, services.BackendServing) && has(m, services.BackendTerminating) {
			chosen = append(chosen, m.ref)
		}
	}
	if usableSomewhere {
		return chosen, services.EmptyDrop
	}
	return chosen, services.EmptyReject
}

// TestNumbersAreUsedAgain: a number comes back only after its release, the
// longest unused first, with another generation.
func TestNumbersAreUsedAgain(t *testing.T) {
	ids := newIdentities()
	first, _ := ids.backend()
	second, _ := ids.backend()
	ids.retireBackend(first, 1, 5)
	ids.retireBackend(second, 1, 6)
	ids.release(4)
	if third, _ := ids.backend(); third.Index() != 2 {
		t.Errorf("index %d is given out while generation 4 is in use", third.Index())
	}
	ids.release(5)
	again, _ := ids.backend()
	if again.Index() != first.Index() || again == first {
		t.Errorf("%#x after %#x was released", again, first)
	}
	if next, _ := ids.backend(); next.Index() == second.Index() {
		t.Error("index 1 is given out while generation 5 is in use")
	}
}

func TestGenerationsWrapWithoutZero(t *testing.T) {
	ids := newIdentities()
	seen := map[services.BackendRef]bool{}
	for n := range uint64(services.BackendGenerations - 1) {
		r, _ := ids.backend()
		if seen[r] || r.Generation() == 0 {
			t.Fatalf("use %d of index 0 is ref %#x", n, r)
		}
		seen[r] = true
		ids.retireBackend(r, 1, n)
		ids.release(n)
	}
	if r, _ := ids.backend(); r.Generation() != 1 {
		t.Errorf("after all generations comes %d", r.Generation())
	}
}

func TestBackendsRunOut(t *testing.T) {
	ids := newIdentities()
	ids.backends.next = services.MaxBackends - 1
	if _, ok := ids.backend(); !ok {
		t.Error("the last backend is not given out")
	}
	if r, ok := ids.backend(); ok {
		t.Errorf("backend %d is given out", r.Index())
	}
}
