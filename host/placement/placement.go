// Package placement chooses the CPUs that workers run on.
//
// On CPUs where packets arrive, the kernel's receive work (NAPI) runs, and takes turns with threads
// pinned there. So workers belong on the other CPUs, and several workers on one of those are better
// than one worker beside receive work:
//
//	NIC queue 0 ──► CPU 0: NAPI, program ──┐
//	NIC queue 1 ──► CPU 0: NAPI, program ──┴──► CPU 1: workers 0 and 1, one goroutine
//
// Before the first packet, the interrupts' CPUs are read. From then on the kernel program's
// counters, one for each CPU, show where packets arrive: interrupts move, and some devices have
// none.
package placement

import (
	"fmt"
	"slices"

	"sluice.dev/sluice/internal/wording"
)

// Machine has the facts for a choice. CPUs have the kernel's numbers.
type Machine struct {
	Allowed []int // that the process may use, in ascending order
	// Isolated are the CPUs of Allowed, and others that the process may choose, that the kernel's
	// scheduler leaves alone (isolcpus).
	Isolated []int
	// Interrupts are the CPUs that interrupts of the interfaces are delivered to.
	Interrupts []int
	// Near are the CPUs of the NUMA nodes that the interfaces are at; nil if that is not known.
	Near []int
	// Core is the first thread of the core that a CPU is a thread of, also of CPUs that the process
	// may not use; nil if that is not known.
	Core map[int]int
}

// Placement has the CPUs of the workers.
type Placement struct {
	CPUs []int  // of each worker; -1 is any
	Why  string // reason for all of them
}

// Fixed is the placement that a configuration has: on its CPUs, in turn.
func Fixed(cpus []int, workers int) Placement {
	return Placement{CPUs: spread(cpus, workers), Why: "workerCPUs has it"}
}

// Polling is the placement of workers that poll the NIC themselves (sockets.busyPoll): no receive
// work is done elsewhere.
func Polling(m *Machine, workers int) Placement {
	p := Choose(m, workers, nil, false)
	if len(m.candidates(nil)) > 0 {
		p.Why = "each polls the NIC itself (sockets.busyPoll)"
	}
	return p
}

// First places workers at their start: on fixed CPUs if there are any (workerCPUs); for polling the
// NIC, if they do; otherwise apart from interrupts. It reports whether they may move later.
func First(m *Machine, workers int, fixed []int, poll bool) (p Placement, moves bool) {
	switch {
	case len(fixed) > 0:
		return Fixed(fixed, workers), false
	case poll:
		return Polling(m, workers), false
	}
	return Choose(m, workers, m.Interrupts, false), m.Choice()
}

// Choose places workers apart from the CPUs where packets arrive, if enough other CPUs are left. If
// fewer than half of the CPUs are left, as with a queue for each CPU, workers use all, first those
// with the fewest packets. arrive is in ascending order of packets. seen: it was counted, and not
// taken from interrupts.
func Choose(m *Machine, workers int, arrive []int, seen bool) Placement {
	how := "interrupts of the interfaces are delivered to"
	if seen {
		how = "packets arrive on"
	}
	where := wording.Numbers(slices.Sorted(slices.Values(arrive)), ", ")
	all, free := m.candidates(nil), m.candidates(arrive)
	switch {
	case len(all) == 0:
		return Placement{CPUs: slices.Repeat([]int{-1}, workers), Why: "it is not known which CPUs may be used"}
	case len(arrive) == 0:
		return Placement{CPUs: spread(all, workers), Why: "spread: it is not known yet where packets arrive"}
	case 2*len(free) < len(all) || len(free) == 0:
		if seen && workers < len(all) { // otherwise all have workers, whatever the order
			slices.SortStableFunc(all, func(a, b int) int { return slices.Index(arrive, a) - slices.Index(arrive, b) })
		}
		return Placement{CPUs: spread(all, workers),
			Why: fmt.Sprintf("spread: %s CPU %s, most of those that there are", how, where)}
	}
	return Placement{CPUs: spread(free, workers), Why: fmt.Sprintf("apart: %s CPU %s", how, where)}
}

// candidates are the CPUs that workers may have but for some, the best first: those alone that are
// isolated, if there are any.
func (m *Machine) candidates(but []int) (cpus []int) {
	of := m.Allowed
	if len(m.Isolated) > 0 {
		of = m.Isolated
	}
	used := map[int]bool{} // cores with a worker
	for _, cpu := range but {
		used[m.core(cpu)] = true
	}
	for _, cpu := range of {
		if !slices.Contains(but, cpu) {
			cpus = append(cpus, cpu)
		}
	}
	// One thread of each core first.
	var first, second []int
	for _, cpu := range cpus {
		if core := m.core(cpu); used[core] {
			second = append(second, cpu)
		} else {
			used[core] = true
			first = append(first, cpu)
		}
	}
	// But first the CPUs of the NICs' nodes, see docs/tuning.md ("Real NICs").
	far := func(cpu int) int {
		if m.Near == nil || slices.Contains(m.Near, cpu) {
			return 0
		}
		return 1
	}
	cpus = append(first, second...)
	slices.SortStableFunc(cpus, func(a, b int) int { return far(a) - far(b) })
	return cpus
}

// Choice reports whether there is more than one CPU to choose from.
func (m *Machine) Choice() bool { return len(m.candidates(nil)) > 1 }

// Remove leaves a CPU out from now on.
func (m *Machine) Remove(cpu int) {
	is := func(other int) bool { return other == cpu }
	m.Allowed = slices.DeleteFunc(slices.Clone(m.Allowed), is)
	m.Isolated = slices.DeleteFunc(slices.Clone(m.Isolated), is)
}

func (m *Machine) core(cpu int) int {
	if core, known := m.Core[cpu]; known {
		return core
	}
	return cpu
}

// spread gives workers the first CPUs, in turn.
func spread(cpus []int, workers int) []int {
	at := make([]int, workers)
	for w := range at {
		at[w] = cpus[w%len(cpus)]
	}
	return at
}
