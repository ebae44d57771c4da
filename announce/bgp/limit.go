package bgp

import (
	"fmt"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"

	"sluice.dev/sluice/announce/kinds"
)

// maxPrefixes is how many routes per family a peer may send. None is used, but GoBGP keeps each. A
// session with more is ended with a Cease of subcode 1 (RFC 4486, section 4).
const maxPrefixes = 10_000

// A session that exceeded the limit begins again after retryFirst, and after twice as long each
// further time, up to retryMost: each attempt announces the VIPs and withdraws them a moment later,
// which moves connections. If the session stays up for retryForget, the next pause is retryFirst.
// GoBGP itself would leave the session in state Idle for ever.
const (
	retryFirst  = time.Minute
	retryMost   = 30 * time.Minute
	retryForget = 10 * time.Minute
)

// prefixLimit is the state of a session with regard to maxPrefixes. The zero value: never exceeded.
type prefixLimit struct {
	wait  time.Duration // pause before the last attempt; 0: not exceeded since retryForget
	retry time.Time     // earliest time of the next attempt
}

// ended records the end, for any reason, of a session that had been up since a time.
func (l *prefixLimit) ended(since, now time.Time) {
	if now.Sub(since) >= retryForget {
		*l = prefixLimit{}
	}
}

// exceeded records that the limit ended a session; call it after ended.
func (l *prefixLimit) exceeded(now time.Time) {
	l.wait = min(max(2*l.wait, retryFirst), retryMost)
	l.retry = now.Add(l.wait)
}

// waits reports whether the session must not begin yet.
func (l *prefixLimit) waits(now time.Time) bool { return now.Before(l.retry) }

// why returns why the session is not up while it waits, or "".
func (l *prefixLimit) why(now time.Time) string {
	if !l.waits(now) {
		return ""
	}
	return tooManyPrefixes + "; the session is tried again at " + l.retry.Format(time.TimeOnly)
}

// tooManyPrefixes is the message about an exceeded limit, with the remedy.
var tooManyPrefixes = fmt.Sprintf("the router sent more than %d routes of a family, and none is used here: "+
	"have it export no routes to gateways", maxPrefixes)

// endedByPrefixLimit reports whether this side ended a session because it exceeded maxPrefixes.
func endedByPrefixLimit(m *apiutil.WatchEventMessage_PeerEvent) bool {
	return m.Peer.State.AdminState == api.PeerState_ADMIN_STATE_PFX_CT
}

// limitProblem returns the Problem of the BGPPeer; ok is false if the limit was not exceeded.
func (s *session) limitProblem() (p kinds.Problem, ok bool) {
	return kinds.Problem{About: s.peer.Ref, Reason: kinds.PrefixLimit, Note: tooManyPrefixes},
		s.limit.wait > 0 && !s.up
}
