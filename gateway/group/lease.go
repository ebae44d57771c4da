package group

import "time"

// LeaseNanos is the length of a lease. Beats are sent each third of it.
const LeaseNanos = int64(300 * time.Millisecond)

// A member and an owner hold a lease about each other, which needs no common clock (Gray and
// Cheriton, SOSP 1989). Each Applied of the member has the time at which it was sent, and the
// owner's next beat returns that time:
//
//	member  ── Applied{sent: t} ──►  owner, at its time u
//	        ◄── Beat{echo: t} ────
//	is leased until t+LeaseNanos     waits until u+LeaseNanos, which is later
//
// A network that passes one direction only ends both.

// MemberLease is the member's side, in nanoseconds of its own clock.
type MemberLease struct{ until int64 }

// Heard notes a beat that returned the time of one of the member's messages.
func (l *MemberLease) Heard(echo int64) { l.until = max(l.until, echo+LeaseNanos) }

// Holds reports whether the member may take itself for in step.
func (l *MemberLease) Holds(now int64) bool { return now < l.until }

// Until returns the time at which the lease ends without a further beat.
func (l *MemberLease) Until() int64 { return l.until }

// OwnerLease is the owner's side, in nanoseconds of its own clock. A process that starts calls
// Heard with the time of its start, because it does not know when the process before heard a
// member.
type OwnerLease struct{ until int64 }

// Heard notes a message of the member.
func (l *OwnerLease) Heard(now int64) { l.until = max(l.until, now+LeaseNanos+driftNanos) }

// Ended reports whether the member's side has ended.
func (l *OwnerLease) Ended(now int64) bool { return now >= l.until }

// driftNanos is more than two clocks differ in their rates during a lease: CLOCK_MONOTONIC is
// slewed by 500 parts in 1,000,000 at most (adjtimex(2)).
const driftNanos = LeaseNanos / 100
