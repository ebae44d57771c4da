package objects

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
				got := conditions(&discoveryv1.EndpointConditions{Ready: ready, Serving: serving,
					Terminating: terminating})
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
					t.Errorf("ready %v, serving %v, terminating %v: got %05b, want %05b", show(ready), show(serving),
						show(terminating), got, want)
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
