package group

import "time"

// LeaseNanos is the length of a lease. Beats are sent each third of it.
const LeaseNanos = int64(300 * time.Millisecond)

// A lease bounds the time for which a member may rely on its copies. Member and owner each know a
// bound, without a common clock (Gray and Cheriton, SOSP 1989). Each Applied of the member has the
// time at which it was sent, and the owner's next beat returns that time:
//
//	member  ── Applied{sent: t} ──►  owner, at its time u
//	        ◄── Beat{echo: t} ────
//	is leased until t+LeaseNanos     waits until u+LeaseNanos, which is later
//
// If the network passes packets in one direction only, both sides of the lease run out.

// MemberLease is the member's side, in nanoseconds of its own clock.
type MemberLease struct{ until int64 }

// Renew extends the lease after a beat that returned the time of one of the member's messages.
func (l *MemberLease) Renew(echo int64) { l.until = max(l.until, echo+LeaseNanos) }

// Holds reports whether the lease holds: only then may the member rely on being in step.
func (l *MemberLease) Holds(now int64) bool { return now < l.until }

// Until returns the time at which the lease ends without a further beat.
func (l *MemberLease) Until() int64 { return l.until }

// OwnerLease is the owner's side, in nanoseconds of its own clock. A process that starts calls
// Renew with the time of its start, because it does not know when the previous process received the
// last message of a member.
type OwnerLease struct{ until int64 }

// Renew extends the lease after a message of the member.
func (l *OwnerLease) Renew(now int64) { l.until = max(l.until, now+LeaseNanos+driftNanos) }

// Ended reports whether the member's side has certainly ended.
func (l *OwnerLease) Ended(now int64) bool { return now >= l.until }

// driftNanos exceeds the difference that two clocks can gain during a lease: CLOCK_MONOTONIC is
// slewed by at most 500 parts in 1,000,000 (adjtimex(2)).
const driftNanos = LeaseNanos / 100
