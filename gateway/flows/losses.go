package flows

import (
	"fmt"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/flowtable"
)

// Losses describes the flows of the previous process that were lost at the start, and what to do;
// "" if all were taken over.
func Losses(r *flowtable.Recovery) string {
	switch {
	case r.Unread:
		return "the flow table in stateDir cannot be read (" + r.Why + "): an empty one replaces it, and " +
			"an unknown number of connections is lost"
	case r.Missing:
		return "the programs of a previous process are attached, but its flow table is not in stateDir: its " +
			"connections are lost. If its table is in another directory, start again with that stateDir"
	case r.Lost > 0:
		return fmt.Sprintf("%d flows did not fit in the smaller flow table and are lost (flows.resize is force); "+
			"%d were moved", r.Lost, r.Recovered)
	case r.Kept:
		return fmt.Sprintf("the flow table keeps its size of %d IPv4 and %d IPv6 flows (%s): restart when fewer flows "+
			"are open or there is memory for both tables, or set flows.resize: force to end those that do not fit",
			r.FoundFlows[0], r.FoundFlows[1], r.Why)
	}
	return ""
}

// Source returns the source of the problems about lost flows.
func Source() objects.Source { return objects.Source{Kind: "flow-table"} }

// LossProblems returns the problem that becomes an Event about the gateway's Node.
func LossProblems(r *flowtable.Recovery, node string) []objects.Problem {
	if r.Lost == 0 && !r.Unread && !r.Missing {
		return nil
	}
	return []objects.Problem{{
		Source: Source(), Object: objects.ObjectID{Kind: objects.KindNode, Name: node}, Message: Losses(r),
		Severity: objects.Warning, Reason: objects.ReasonFlowsLost,
	}}
}
