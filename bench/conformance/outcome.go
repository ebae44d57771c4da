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

// answer is what came of one connection.
type answer struct {
	verdict string // empty if a backend answered
	backend string
	source  string // the address, without port, that the backend saw
	client  string // the address that the client has
}

// outcome is what came of a probe: one line.
func outcome(answers []answer, sticky bool, gateway func(string) bool) string {
	var verdicts, backends, sources []string
	for _, a := range answers {
		if a.verdict != "" {
			verdicts = append(verdicts, a.verdict)
			continue
		}
		backends = append(backends, a.backend)
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
		who := strings.Join(set(backends), " ")
		if sticky {
			who = "several"
			if len(set(backends)) == 1 {
				who = "one"
			}
		}
		all = append(all, fmt.Sprintf("%s from %s", who, strings.Join(set(sources), ", ")))
	}
	return strings.Join(append(all, set(verdicts)...), "; ")
}

// set is each of a list once, in order.
func set(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }
