// Package members decides which gateway of a link has a VIP, from the hellos that gateways send
// each other. All choose alike, and nobody is asked: there is no election.
//
//	hellos ──▶ Receive ──▶ who is alive, and which VIPs each would forward ─┐
//	SetVIPs ─▶ which VIPs this gateway would forward ───────────────────────┼─▶ owner of each VIP
//	Tick ────▶ who has been silent for too long ────────────────────────────┘
//
// # Owner
//
// The owner of a VIP is the candidate with the greatest hash of its name and the VIP (rendezvous
// hashing). Candidates are the live members that list the VIP. So a member that goes moves its own
// VIPs and no others, and they come back with it. Candidates that are about to leave are only
// chosen where there are no others, and those that list the VIP as the last resort only where all
// candidates do.
//
// # Alive
//
// A member is alive from a hello that proves that it is of now, until it says goodbye or is silent
// for Silent intervals. A hello of a member that is not known to be alive is of now if it has a
// nonce in it that this process made after it lost the member, or after it started: recorded hellos
// have none. Of a live member only greater sequences of its incarnation count, or a later one. So
// no clocks are compared. An incarnation is that of one Members: those of a link that is put back
// in the same process begin from sequence 1 with a new list, and would be old with the same one.
//
// A process that stood still itself has heard nobody meanwhile: others are not dead for that
// reason, their time is extended (Tick), and its next hello says that it hears them.
//
// # Joining
//
// A member that starts, whose gateway or link begins to work, or that another live member has lost,
// is joining for Settle: it hears the others and takes no VIP. So a gateway that comes and goes
// moves nothing, and who was taken for dead while it stood still gives way before it takes back. It
// joins for longer, up to maxJoin times that, while it does not know all that a live member lists.
//
// # After a cut
//
// Where a link was cut in two each side had an owner, and hosts of the side that gives a VIP up
// know the wrong one. So who hears a member again, or is heard by it again, announces all that it
// has.
//
// # Lists
//
// A list of VIPs goes in parts, one a hello. What has changed is sent at once, all of it to who
// begins to hear us, maxBurst hellos in an interval at most; and one part in each interval whatever
// happens, as frames get lost. A VIP stays in its part, so each part that comes is used at once
// (table), and no list is unknown because it changes.
//
// # Returning
//
// A process that ends while its gateway forwards on says that it returns. Its VIPs are kept for the
// next one for Return, and while that joins: it stays the owner, and one of the others answers with
// the owner's hardware address: of those that know the VIP the one with the greatest hash, whether
// or not it would forward the VIP itself (lists name those, too). So packets go where they went.
//
// Everything here is a function of what is passed, the time among it. Members is not for several
// goroutines at once.
package members
