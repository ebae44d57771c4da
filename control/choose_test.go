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
// policies, against the rules written as plain questions.
func TestChoose(t *testing.T) {
	const states = 1 << 5
	for a := range states {
		for b := -1; b < states; b++ {
			for weights := range 4 {
				members := []member{{flags: services.BackendFlags(a), ref: 1, weight: uint16(weights & 1)}}
				if b >= 0 {
					members = append(members, member{flags: services.BackendFlags(b), ref: 2, weight: uint16(weights >> 1)})
				}
				judgeChoice(t, members)
			}
		}
	}
}

// TestChooseByHints goes through every pair of ready endpoints with every
// combination of hints beside a terminating one.
func TestChooseByHints(t *testing.T) {
	const states = 1 << 4
	for a := range states {
		for b := range states {
			for _, second := range []services.BackendFlags{services.BackendReady, services.BackendReady | services.BackendDrained, services.BackendServing | services.BackendTerminating, 0} {
				judgeChoice(t, []member{
					{flags: services.BackendReady | services.BackendLocal, ref: 1, weight: 1, hints: hintBits(a)},
					{flags: second, ref: 2, weight: 3, hints: hintBits(b)},
					{flags: services.BackendServing | services.BackendTerminating, ref: 3, weight: 1},
				})
			}
		}
	}
}

func judgeChoice(t *testing.T, members []member) {
	t.Helper()
	for _, local := range []bool{false, true} {
		got, empty, topology := choose(members, local, nil)
		want, wantEmpty, wantTopology := chooseSlowly(members, local)
		if fmt.Sprint(got) != fmt.Sprint(want) || len(want) == 0 && empty != wantEmpty || topology != wantTopology {
			t.Fatalf("%+v, local %v: got %v %v %v, want %v %v %v", members, local, got, empty, topology, want, wantEmpty, wantTopology)
		}
	}
}

func chooseSlowly(members []member, local bool) (chosen []services.BackendRef, empty services.Empty, topology services.Topology) {
	has := func(m member, f services.BackendFlags) bool { return m.flags&f != 0 }
	var able []member // those that count at all
	for _, m := range members {
		if m.weight > 0 && !has(m, services.BackendDrained) {
			able = append(able, m)
		}
	}
	every := func(bit hintBits) bool {
		for _, m := range able {
			if has(m, services.BackendReady) && m.hints&bit == 0 {
				return false
			}
		}
		return true
	}
	some := func(bit hintBits) bool {
		for _, m := range able {
			if has(m, services.BackendReady) && m.hints&bit != 0 {
				return true
			}
		}
		return false
	}
	if !local && every(hintedNode) && some(hintsNode) {
		topology = services.TopologyNode
	} else if !local && every(hintedZone) && some(hintsZone) {
		topology = services.TopologyZone
	}
	for _, m := range able {
		if has(m, services.BackendReady) && (!local || has(m, services.BackendLocal)) &&
			(topology != services.TopologyNode || m.hints&hintsNode != 0) && (topology != services.TopologyZone || m.hints&hintsZone != 0) {
			chosen = append(chosen, m.ref)
		}
	}
	empty = services.EmptyReject
	for _, m := range able {
		if has(m, services.BackendReady) || has(m, services.BackendServing) && has(m, services.BackendTerminating) {
			empty = services.EmptyDrop
		}
	}
	if len(chosen) > 0 {
		return chosen, empty, topology
	}
	for _, m := range able {
		if has(m, services.BackendServing) && has(m, services.BackendTerminating) && (!local || has(m, services.BackendLocal)) {
			chosen = append(chosen, m.ref)
		}
	}
	return chosen, empty, topology
}

// TestIdentity pins the number that affinity pins are keyed by: gateways of
// different versions must agree. The value is what
// printf default/web:http/TCP | sha256sum | head -c 16 prints.
func TestIdentity(t *testing.T) {
	web := servicePort{name: "http", proto: 6}
	got := serviceIdentity(unitKey{"default", "web"}, web)
	if got != identityOfWeb {
		t.Errorf("got %#x, want %#x", got, uint64(identityOfWeb))
	}
	web.port, web.nodePort = 80, 30080
	if serviceIdentity(unitKey{"default", "web"}, web) != got {
		t.Error("a port's number changes it")
	}
	if web.proto = 17; serviceIdentity(unitKey{"default", "web"}, web) == got {
		t.Error("the protocol does not")
	}
}

const identityOfWeb = 0x7abb66a466fc0a50

// TestBusyNumbersWait: a number whose last owner still has flows is not given out,
// and is when they are over.
func TestBusyNumbersWait(t *testing.T) {
	ids := newIdentities()
	busy := map[services.BackendRef]bool{}
	ids.busy = func(r services.BackendRef) bool { return busy[r] }
	var refs []services.BackendRef
	for range 3 * maxRecheck {
		r, _ := ids.backend()
		refs = append(refs, r)
		busy[r] = true
		ids.retireBackend(r, 1, 1)
	}
	ids.release(1)
	ids.release(1)
	if r, _ := ids.backend(); r.Index() != 3*maxRecheck+1 {
		t.Fatalf("index %d is given out, and its flows live", r.Index())
	}
	delete(busy, refs[5])
	for range 3 {
		ids.release(1)
	}
	again, _ := ids.backend()
	if again.Index() != refs[5].Index() || again == refs[5] {
		t.Fatalf("got %#x, want index %d again", again, refs[5].Index())
	}
	if r, _ := ids.backend(); r.Index() != 3*maxRecheck+2 || len(ids.waiting) != 3*maxRecheck-1 {
		t.Errorf("next is %d, %d wait", r.Index(), len(ids.waiting))
	}
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
	if third, _ := ids.backend(); third.Index() != 3 {
		t.Errorf("index %d is given out while generation 4 is in use", third.Index())
	}
	ids.release(5)
	again, _ := ids.backend()
	if again.Index() != first.Index() || again == first {
		t.Errorf("%#x after %#x was released", again, first)
	}
	if next, _ := ids.backend(); next.Index() == second.Index() {
		t.Error("index 2 is given out while generation 5 is in use")
	}
}

func TestGenerationsWrapWithoutZero(t *testing.T) {
	ids := newIdentities()
	seen := map[services.BackendRef]bool{}
	for n := range uint64(services.BackendGenerations - 1) {
		r, _ := ids.backend()
		if seen[r] || r.Generation() == 0 {
			t.Fatalf("use %d of index 1 is ref %#x", n, r)
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
