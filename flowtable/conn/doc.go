// Package conn is the state machine of a connection: TCP, SCTP, UDP and ICMP queries.
//
// Meta is the whole state of one flow in a word: state, notes about packets that have no answer or
// proof yet, protocol, and last-seen time. Observe returns the word after a packet (Segment) of one
// side. All functions are pure: the flow table stores the word, and swaps it atomically. moves is
// the table of transitions; Timeouts and Lifetimes have the lifetime of a flow in each state.
package conn
