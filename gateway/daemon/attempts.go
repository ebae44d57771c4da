package daemon

import (
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/gateway/handover"
)

// attempts counts the hand-overs to successors of one version that failed after the offer
// (handover.PeerError). Each attempt stops the control loop for a moment, and perhaps the workers.
// The supervisor of a successor that cannot take over would start it again without end.
type attempts struct {
	version string
	n       int
	last    time.Time
}

const (
	mostAttempts = 3 // in a row
	restAfter    = 10 * time.Minute
)

// note counts an attempt that ended with err, if the successor is its cause.
func (a *attempts) note(version string, err error, now time.Time) {
	var peer *handover.PeerError
	if !errors.As(err, &peer) {
		return
	}
	if a.version != version || now.Sub(a.last) > restAfter {
		*a = attempts{version: version}
	}
	a.n, a.last = a.n+1, now
}

// check returns an error if a version must not try again before restAfter has passed.
func (a *attempts) check(version string, now time.Time) error {
	if a.version != version || a.n < mostAttempts || now.Sub(a.last) > restAfter {
		return nil
	}
	return &handover.BarredError{Reason: fmt.Sprintf("%d attempts of this version failed after the offer, see their "+
		"logs; it is refused until %s", a.n, a.last.Add(restAfter).UTC().Format(time.RFC3339))}
}
