// Package decide decides about packets by their parsed headers, a snapshot of services, a view of
// next hops, the flow table and the pins of clients. It reads no frame.
//
//	                       ┌─ Classify: what its flow is to it (Standing)
//	headers ──► Planner ───┤
//	                       └─ Plan: a new flow, or why there is none (Plan, Refusal)
//
// A Planner changes no packet and sends nothing. It writes only state of decisions: the turn of a
// frontend (Plan), a client's pin (Settle), and the backend and next hops of a flow (Bind).
// fastpath's workers carry decisions out. An Explainer makes the same decisions and describes them
// for people.
package decide
