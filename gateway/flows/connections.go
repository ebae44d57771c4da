package flows

import "sluice.dev/sluice/flowtable"

// Connections returns the number of open TCP and SCTP flows. UDP flows have no visible end, so they
// are not counted and a drain does not wait for them.
func Connections(c *flowtable.Counts) (n uint64) {
	for _, open := range [...]flowtable.State{
		flowtable.SynSeen, flowtable.SynRecv, flowtable.Unconfirmed, flowtable.Established,
		flowtable.FinClient, flowtable.FinBackend, flowtable.LastAckClient, flowtable.LastAckBackend,
	} {
		n += c.States[open]
	}
	return n
}
