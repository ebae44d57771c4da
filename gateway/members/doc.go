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
// keeps until it is removed and the last copy of its flows has ended. A later process gets the list
// of removed gateways (Config.Removed), because the flow table may have copies of their flows.
//
// A gateway in a group also announces the source addresses of the other gateways (View.Announced).
// The AS path is longer the later the gateway comes in the owner's order (sources.Order). It
// announces the addresses of an owner as long as it has the owner's flows: it was in step with the
// owner once, and has kept the copies. Gateways that are no longer in step come after the gateways
// that are.
package members
