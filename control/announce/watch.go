package announce

import (
	"fmt"
	"strings"
	"time"

	"sluice.dev/sluice/control/pulse"
)

// MaxHold is the longest time that a gateway's process can be waited for: then the kernel program
// gives packets to the kernel (tuning.passAfter, ADR 3), and flows are not kept any more.
const MaxHold = 30 * time.Second

// DefaultHold is how long it is waited for. A restart takes 0.7 s at most after the process is
// started (docs/operations.md). A process that crashed is started again at once by systemd and, the
// first time, by the kubelet; a pod of a rollout follows some seconds after the one before. A TCP
// connection opened meanwhile sends its SYN again after 1, 3 and 7 s, and is answered by then. If
// nobody follows, clients of this gateway's VIPs wait that long.
const DefaultHold = 10 * time.Second

// Grade is how far something is to be announced.
type Grade int

// The grades, in their order.
const (
	No      Grade = iota // not announced
	Leaving              // announced as about to go: routers prefer others (RFC 8326)
	Yes
)

func (g Grade) String() string { return [...]string{"no", "leaving", "yes"}[g] }

// Verdict is what follows from what is seen of the gateway.
type Verdict struct {
	Grade Grade
	Why   string // not Yes, or Yes although nothing is heard of it
	VIPs  []pulse.VIP
	// Until is when it changes without anything being seen; zero: never.
	Until time.Time
}

// Serves reports whether the gateway is heard, and forwards: nothing is waited for.
func (v *Verdict) Serves() bool { return v.Grade == Yes && v.Until.IsZero() }

// Watch judges the gateway. The zero value has not seen it.
type Watch struct {
	Hold time.Duration

	sight pulse.Sight
	vips  []pulse.VIP // served when it forwarded last
	good  bool        // it forwarded when it was heard last, or a process before said that it did
	since time.Time   // when it did not any more, or was not heard
}

// Resume says that the announcer's process before announced VIPs: the gateway is waited for from
// now on as if it had been lost now.
func (w *Watch) Resume(vips []pulse.VIP, now time.Time) {
	w.vips, w.good, w.since = vips, true, now
	w.sight = pulse.Sight{Lost: "the gateway was not asked yet", At: now}
}

// See takes what is seen of the gateway.
func (w *Watch) See(s pulse.Sight, now time.Time) {
	w.sight = s
	switch {
	case s.State == nil || s.Lost != "":
		w.lose(now)
		return
	case s.State.Phase == pulse.Serving:
		w.good, w.since = len(s.State.Failures) == 0, time.Time{}
		w.vips = s.State.VIPs
	case s.State.Phase == pulse.Draining:
		w.good = false // nobody follows
		w.vips = s.State.VIPs
	default:
		w.lose(now)
	}
}

func (w *Watch) lose(now time.Time) {
	if w.since.IsZero() {
		w.since = now
	}
}

// Heard reports whether it is known what the gateway does: whoever starts must not take routes away
// before.
func (w *Watch) Heard(now time.Time) bool {
	if w.sight.State != nil && w.sight.Lost == "" && w.sight.State.Phase != pulse.Opening {
		return true
	}
	return !w.since.IsZero() && !now.Before(w.since.Add(w.Hold))
}

// Verdict judges the gateway at a time.
func (w *Watch) Verdict(now time.Time) Verdict {
	s := w.sight
	if s.State != nil && s.Lost == "" {
		switch s.State.Phase {
		case pulse.Serving:
			if len(s.State.Failures) > 0 {
				return Verdict{Grade: No, Why: strings.Join(s.State.Failures, "; "), VIPs: w.vips}
			}
			return Verdict{Grade: Yes, VIPs: w.vips}
		case pulse.Draining:
			return Verdict{Grade: Leaving, Why: "the gateway drains, and ends", VIPs: w.vips}
		}
	}
	why := s.Lost
	switch {
	case why != "":
	case s.State == nil:
		why = "nothing is known of the gateway yet"
	case s.State.Phase == pulse.HandingOver:
		why = "the gateway's process ends and hands over"
	default:
		why = "the gateway's process starts"
	}
	end := w.since.Add(w.Hold)
	if !w.good || w.Hold == 0 || !now.Before(end) {
		return Verdict{Grade: No, Why: why, VIPs: w.vips}
	}
	return Verdict{Grade: Yes, VIPs: w.vips, Until: end,
		Why: fmt.Sprintf("%s; it is waited for until %s (hold %v)", why, end.Format(time.TimeOnly), w.Hold)}
}
