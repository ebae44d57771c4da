// Package decide is what becomes of a packet, without the packet: its parsed headers, a snapshot of
// services, a view of next hops, the flow table and the pins of clients go in, a decision comes
// out.
//
//	                       ┌─ Classify: what its flow is to it (Standing)
//	headers ──► Planner ───┤
//	                       └─ Plan: a new flow, or why there is none (Plan, Refusal)
//
// A Planner changes no packet and sends nothing. It writes where the decision itself is state: the
// turn of a frontend (Plan), a client's pin (Settle), and what a flow remembers of the snapshot and
// the view (Bind). fastpath's workers carry decisions out. An Explainer makes the same ones and
// describes them to people.
package decide
