package compiler

import (
	"fmt"
	"testing"

	"sluice.dev/sluice/fastpath/services"
)

// TestChoose goes through every pair of endpoints, and each alone, under both
// policies, against the rules written as plain questions.
func TestChoose(t *testing.T) {
	const states = 1 << 5
	for a := range states {
		for b := -1; b < states; b++ {
			for weights := range 4 {
				members := []member{{flags: services.BackendFlags(a), ref: 1, weight: uint16(weights & 1)}}
				if b >= 0 {
					members = append(members, member{flags: services.BackendFlags(b), ref: 2,
						weight: uint16(weights >> 1)})
				}
				checkChoice(t, members)
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
			for _, second := range []services.BackendFlags{
				services.BackendReady, services.BackendReady | services.BackendDrained,
				services.BackendServing | services.BackendTerminating, 0,
			} {
				checkChoice(t, []member{
					{flags: services.BackendReady | services.BackendLocal, ref: 1, weight: 1, hints: hintBits(a)},
					{flags: second, ref: 2, weight: 3, hints: hintBits(b)},
					{flags: services.BackendServing | services.BackendTerminating, ref: 3, weight: 1},
				})
			}
		}
	}
}

func checkChoice(t *testing.T, members []member) {
	t.Helper()
	for _, local := range []bool{false, true} {
		got, empty, topology := choose(members, local, nil)
		want, wantEmpty, wantTopology := chooseSlowly(members, local)
		if fmt.Sprint(got) != fmt.Sprint(want) || len(want) == 0 && empty != wantEmpty || topology != wantTopology {
			t.Fatalf("%+v, local %v: got %v %v %v, want %v %v %v", members, local, got, empty, topology, want,
				wantEmpty, wantTopology)
		}
	}
}

func chooseSlowly(
	members []member, local bool,
) (chosen []services.BackendRef, empty services.Empty, topology services.Topology) {
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
			(topology != services.TopologyNode || m.hints&hintsNode != 0) && (topology != services.TopologyZone ||
			m.hints&hintsZone != 0) {
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
		if has(m, services.BackendServing) && has(m, services.BackendTerminating) && (!local ||
			has(m, services.BackendLocal)) {
			chosen = append(chosen, m.ref)
		}
	}
	return chosen, empty, topology
}
