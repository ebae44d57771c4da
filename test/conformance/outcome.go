package conformance

import (
	"fmt"
	"slices"
	"strings"
)

// Verdicts of a single connection that no backend answered.
const (
	reject     = "reject"
	drop       = "drop"
	passRoute  = "beyond from client" // the kernel routed it, see beyond
	passListen = "pass: no listener"
)

// answer is the result of one connection.
type answer struct {
	verdict string // empty if a backend answered
	backend string
	source  string // the address, without port, that the backend saw
	client  string // the address that the client has
}

// manner selects the part of a probe's answers that its outcome shows.
type manner uint8

const (
	who        manner = iota // the backends
	whetherOne               // one or several
	oneForEach               // whether each client met one, or some met several
	howOften                 // the backends, and how often each was met
	inTurn                   // the backends, and whether each had its turn in every round
)

// name describes who answered.
func (m manner) name(backends, clients []string) string {
	met := set(backends)
	switch m {
	case whetherOne:
		if len(met) > 1 {
			return "several"
		}
		return "one"
	case oneForEach:
		by := map[string]string{}
		for i, c := range clients {
			if before, ok := by[c]; ok && before != backends[i] {
				return "several for one client"
			}
			by[c] = backends[i]
		}
		return "one for each client"
	case howOften:
		n := map[string]int{}
		for _, b := range backends {
			n[b]++
		}
		for i, b := range met {
			met[i] = fmt.Sprintf("%s %d×", b, n[b])
		}
		return strings.Join(met, ", ")
	}
	text := strings.Join(met, " ")
	if m != inTurn {
		return text
	}
	for i := len(met); i < len(backends); i++ {
		if backends[i] != backends[i-len(met)] {
			return text + " not in turn"
		}
	}
	return text + " in turn"
}

// outcome is the result of a probe: one line.
func outcome(answers []answer, as manner, gateway func(string) bool) string {
	var verdicts, backends, clients, sources []string
	for _, a := range answers {
		if a.verdict != "" {
			verdicts = append(verdicts, a.verdict)
			continue
		}
		backends, clients = append(backends, a.backend), append(clients, a.client)
		switch {
		case a.source == a.client:
			sources = append(sources, "client")
		case gateway(a.source):
			sources = append(sources, "gateway")
		default:
			sources = append(sources, a.source)
		}
	}
	var all []string
	if len(backends) > 0 {
		all = append(all, fmt.Sprintf("%s from %s", as.name(backends, clients), strings.Join(set(sources), ", ")))
	}
	return strings.Join(append(all, set(verdicts)...), "; ")
}

// set is each of a list once, in order.
func set(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }
