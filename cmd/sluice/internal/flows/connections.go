package flows

import "sluice.dev/sluice/flowtable"

// Connections counts the TCP and SCTP flows whose ends still have something to say. Nobody
// can tell when UDP has: it is served meanwhile, but not waited for.
func Connections(c *flowtable.Counts) (n uint64) {
	for _, open := range [...]flowtable.State{
		flowtable.SynSeen, flowtable.SynRecv, flowtable.Unconfirmed, flowtable.Established,
		flowtable.FinClient, flowtable.FinBackend, flowtable.LastAckClient, flowtable.LastAckBackend,
	} {
		n += c.States[open]
	}
	return n
}
