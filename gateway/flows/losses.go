package flows

import (
	"fmt"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/flowtable"
)

// Losses returns what the start did with a predecessor's flows that an operator should know, and
// what to do; empty if all were taken over.
func Losses(r *flowtable.Recovery) string {
	switch {
	case r.Unread:
		return "the flow table that was found cannot be read (" + r.Why + "): it was replaced by an empty one, and " +
			"the connections that were in it are lost, nobody knows how many"
	case r.Missing:
		return "a process before has left its programs, and there is no flow table of it in stateDir: its " +
			"connections are lost, unless its table is in another directory: start again with that stateDir"
	case r.Lost > 0:
		return fmt.Sprintf("%d flows did not fit in the smaller flow table and are lost, as flows.resize is force; "+
			"%d were moved", r.Lost, r.Recovered)
	case r.Kept:
		return fmt.Sprintf("the flow table keeps its size of %d IPv4 and %d IPv6 flows (%s): restart when fewer flows "+
			"are open or there is memory for both tables, or set flows.resize: force to end those that do not fit",
			r.FoundFlows[0], r.FoundFlows[1], r.Why)
	}
	return ""
}

// Source is where the Problem about lost flows comes from.
func Source() objects.Source { return objects.Source{Kind: "flow-table"} }

// LossProblems returns what becomes an Event about the gateway's Node.
func LossProblems(r *flowtable.Recovery, node string) []objects.Problem {
	if r.Lost == 0 && !r.Unread && !r.Missing {
		return nil
	}
	return []objects.Problem{{
		Source: Source(), Object: objects.ObjectID{Kind: objects.KindNode, Name: node}, Message: Losses(r),
		Severity: objects.Warning, Reason: objects.ReasonFlowsLost,
	}}
}
