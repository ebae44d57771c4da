package flows

import "sluice.dev/sluice/flowtable"

// Connections counts the TCP and SCTP flows that are not closed yet. UDP has no end that could be
// seen: its flows are not counted, and so not waited for.
func Connections(c *flowtable.Counts) (n uint64) {
	for _, open := range [...]flowtable.State{
		flowtable.SynSeen, flowtable.SynRecv, flowtable.Unconfirmed, flowtable.Established,
		flowtable.FinClient, flowtable.FinBackend, flowtable.LastAckClient, flowtable.LastAckBackend,
	} {
		n += c.States[open]
	}
	return n
}
