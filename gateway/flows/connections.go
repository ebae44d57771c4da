package flows

import "sluice.dev/sluice/flowtable"

// Connections returns the number of open TCP and SCTP flows. UDP flows have no visible end, so they
// are not counted and a drain does not wait for them.
func Connections(c *flowtable.Counts) (n uint64) {
	for s := range flowtable.State(flowtable.NumStates) {
		if s.Connection() {
			n += c.States[s]
		}
	}
	return n
}
