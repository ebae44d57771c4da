// Package members makes this gateway one of its group (config.Group): it joins the states of source
// addresses (sources), the flow table and the workers (replication), and the streams to the other
// gateways (peers, group/exchange).
//
//	config.Group ──► Members ──► sources.Sources      files
//	                    │ ─────► replication.Flows    flow table, workers' Board
//	                    │ ─────► exchange, peers      streams, listener
//	                    └──────► View, 50 times a second: status, metrics, pulse
//
// Gateways join and are removed while it runs (Set). Each has a number, a group.Member, which it
// keeps until it is removed and its last copy has ended. A later process is told of the removed
// ones (Config.Removed), because the flow table may have their copies.
//
// A gateway in a group also announces the source addresses of the others (View.Announced), each
// with a longer AS path the later it comes in the order of that owner (sources.Order). It does so
// as long as it has the owner's flows: it was in step with the owner once, and has kept the copies.
// A gateway that is not in step any more comes after all that are.
package members
