// Package members decides which gateway of a link owns a VIP, from the hellos that gateways send
// each other. All gateways compute the same owner from the same input; there is no election.
//
//	hellos ──▶ Receive ──▶ live members, and the VIPs that each would forward ─┐
//	SetVIPs ─▶ the VIPs that this gateway would forward ───────────────────────┼─▶ owner of each VIP
//	Tick ────▶ members that have been silent for too long ─────────────────────┘
//
// # Owner
//
// The owner of a VIP is the candidate with the greatest hash of its name and the VIP (rendezvous
// hashing). Candidates are the live members that list the VIP. So when a member goes, only its own
// VIPs move, and they come back with it. A leaving candidate is chosen only if there is no other,
// and a candidate that lists the VIP as the last resort only if all candidates do.
//
// # Alive
//
// A member is alive from its first fresh hello until it says goodbye or is silent for Silent
// intervals. A hello of a member that is not alive is fresh if it contains a nonce that this
// process made after it lost the member, or after it started: recorded hellos contain none. Of a
// live member, only a greater sequence of its incarnation counts, or a greater incarnation. So no
// clocks are compared. Each Members has its own incarnation: if a link is removed and added again
// in one process, the new Members starts with sequence 1 and a new list, and its hellos would
// otherwise count as replays.
//
// A process that was suspended has received no hellos meanwhile. It does not count the others as
// dead for that reason but extends their deadlines (Tick), and its next hello confirms theirs.
//
// # Joining
//
// A member joins for JoinTime when it starts, when its gateway or its link begins to work, or when
// another live member has lost it: it receives the others' hellos and takes no VIP. So a gateway
// that comes and goes moves no VIP, and a suspended one that was taken for dead gives its VIPs up
// before it takes them back. It joins for longer, at most maxJoin times JoinTime, while the list of
// a live member is incomplete.
//
// # After a partition
//
// While a link was partitioned, each side had an owner, and hosts on one side have the wrong
// address cached. So a member that receives hellos of another one again, or whose hellos arrive
// there again, announces all of its VIPs.
//
// # Lists
//
// A list of VIPs is sent in parts, one per hello. Changed parts are sent at once, and all parts to
// a member that begins to receive hellos, at most maxBurst hellos per interval. In each interval
// one part is sent in any case, because frames get lost. A VIP stays in its part, so each part is
// used when it arrives (table), and frequent changes do not keep a list incomplete.
//
// # Returning
//
// A process that ends while its gateway continues to forward sends Returning. Its VIPs are kept for
// its next process for Return, and while that joins: it stays the owner, and another member answers
// with the owner's hardware address. That member is the one with the greatest hash among those that
// know the VIP, including members that would not forward it (lists have those VIPs, too). So
// packets continue to reach the same gateway.
//
// All functions depend only on their arguments, including the time. Members is not safe for
// concurrent use.
package members
