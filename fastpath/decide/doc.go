// Package decide decides about packets by their parsed headers, a snapshot of services, a view of
// next hops, the flow table and the pins of clients. It reads no frame.
//
//	                       ┌─ Classify: relation of the packet to its flow (Class)
//	headers ──► Planner ───┤
//	                       └─ Plan: a new flow, or why there is none (Plan, Response)
//
// A Planner changes no packet and sends nothing. It writes only state that decisions depend on: the
// turn of a frontend (Plan), a client's pin (Settle), and the backend and next hops of a flow
// (Bind). fastpath's workers carry out the decisions. An Explainer makes the same decisions and
// describes them in text.
package decide
