package announce

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"sluice.dev/sluice/announce/pulse"
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

// holdRefill is how long a gateway must forward to earn one second of hold again. Hand-overs once a
// minute may each take 8 s of 60 without a withdrawal; a process that forwards less than that is
// held for a seventh of the time at most.
const holdRefill = 6

// Grade is how far something is to be announced.
type Grade int

// The grades, in their order.
const (
	No         Grade = iota // not announced
	LastResort              // announced so that any other gateway is preferred
	Leaving                 // announced as about to go: routers prefer others (RFC 8326)
	Yes
)

func (g Grade) String() string { return [...]string{"no", "last resort", "leaving", "yes"}[g] }

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
//
// Hold is a budget: the time for which a gateway was waited for is taken from it, and is earned
// again by forwarding (holdRefill). A process that ends again and again uses it up, and its routes
// are then withdrawn with each end. It is announced as LastResort after that, until it has earned
// half of the budget.
type Watch struct {
	Hold time.Duration

	sight pulse.Sight
	vips  []pulse.VIP // served when it forwarded last
	newer changes     // of sight.State since vips
	moved changes     // of vips since Changes was called last
	// interfaces that it said last that it serves; nil: not known
	interfaces []string
	good       bool      // it forwarded when it was heard last, or a process before said that it did
	since      time.Time // when it did not any more, or was not heard

	used     HoldUsed      // of Hold, at the time counted
	counted  time.Time     // zero: nothing was seen yet
	lostWith time.Duration // used.Spent at since
}

// changes are the VIPs that may differ between two times: the listed ones, or all.
type changes struct {
	all  bool
	list []netip.Addr
}

func (c *changes) add(o changes) {
	if c.all = c.all || o.all; c.all {
		c.list = nil
		return
	}
	c.list = append(c.list, o.list...)
}

// take returns them, and forgets them.
func (c *changes) take() changes {
	taken := *c
	*c = changes{}
	return taken
}

// HoldUsed is the part of Watch that outlives the announcer's process.
type HoldUsed struct {
	// Spent is how much of the hold is used up, from 0 to Watch.Hold.
	Spent time.Duration `json:"spent,omitempty"`
	// Repeats: the gateway ended, and was not back before its hold was used up, while it had not
	// earned all of it again since the end before.
	Repeats bool `json:"repeats,omitempty"`
}

// Restore takes what Used returned in the announcer's process before.
func (w *Watch) Restore(u HoldUsed) { w.used = u }

// Used returns what the next process must know. Times are in whole seconds, rounded up, so that
// few values differ; while the gateway is waited for, the second that has begun is spent.
func (w *Watch) Used(now time.Time) HoldUsed {
	u := w.usedAt(now)
	if w.waits() {
		u.Spent += time.Second
	} else {
		u.Spent += time.Second - 1
	}
	u.Spent = min(u.Spent.Truncate(time.Second), w.Hold)
	return u
}

// Resume says that the announcer's process before announced VIPs: the gateway is waited for from
// now on as if it had been lost now, and for pulse.Silence even where all of the hold is used up:
// it may forward, and has not been asked.
func (w *Watch) Resume(vips []pulse.VIP, now time.Time) {
	w.count(now)
	w.vips, w.good, w.since = vips, true, now
	w.newer.all, w.moved.all = true, true
	w.lostWith = min(w.used.Spent, max(w.Hold-pulse.Silence, 0))
	w.sight = pulse.Sight{Lost: "the gateway was not asked yet", At: now}
}

// See takes what is seen of the gateway.
func (w *Watch) See(s pulse.Sight, now time.Time) {
	w.count(now)
	if s.State != w.sight.State {
		w.newer.add(changes{all: s.Since == nil || s.Since != w.sight.State, list: s.Changed})
	}
	w.sight = s
	if s.State != nil && s.State.Interfaces != nil {
		w.interfaces = s.State.Interfaces
	}
	switch {
	case s.State == nil || s.Lost != "":
		w.lose(now)
		return
	case s.State.Phase == pulse.Serving:
		w.good, w.since = len(s.State.Failures) == 0, time.Time{}
		w.serve(s.State.VIPs)
	case s.State.Phase == pulse.Draining:
		w.good = false // nobody follows
		w.serve(s.State.VIPs)
	default:
		w.lose(now)
	}
}

// serve takes the VIPs of the state that was seen last.
func (w *Watch) serve(vips []pulse.VIP) {
	w.vips = vips
	w.moved.add(w.newer.take())
}

// Changes returns the addresses whose VIP in a Verdict may differ from that of before the last
// call; all: any may.
func (w *Watch) Changes() (list []netip.Addr, all bool) {
	c := w.moved.take()
	return c.list, c.all
}

func (w *Watch) lose(now time.Time) {
	if w.since.IsZero() {
		w.since, w.lostWith = now, w.used.Spent
	}
}

// waits reports whether a gateway that forwarded is not heard to do so any more.
func (w *Watch) waits() bool { return w.good && !w.since.IsZero() }

// count brings used up to date.
func (w *Watch) count(now time.Time) { w.used, w.counted = w.usedAt(now), now }

// usedAt returns what is used of the hold at a time.
func (w *Watch) usedAt(now time.Time) HoldUsed {
	u := w.used
	passed := now.Sub(w.counted)
	switch {
	case w.counted.IsZero() || !w.good:
	case w.waits():
		u.Spent = min(u.Spent+passed, w.Hold)
		u.Repeats = u.Repeats || w.lostWith > 0 && u.Spent == w.Hold
	default:
		u.Spent = max(u.Spent-passed/holdRefill, 0)
		u.Repeats = u.Repeats && u.Spent > w.Hold/2
	}
	return u
}

// holdEnds is until when the gateway is waited for. It must not be heard to forward.
func (w *Watch) holdEnds() time.Time { return w.since.Add(w.Hold - min(w.lostWith, w.Hold)) }

// Heard reports whether it is known what the gateway does: whoever starts must not take routes away
// before.
func (w *Watch) Heard(now time.Time) bool {
	if w.sight.State != nil && w.sight.Lost == "" && w.sight.State.Phase != pulse.Opening {
		return true
	}
	return !w.since.IsZero() && !now.Before(w.holdEnds())
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
			return w.serves(now)
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
	end := w.holdEnds()
	if !w.good || !now.Before(end) {
		if w.good && w.lostWith > 0 {
			why += fmt.Sprintf("; %v of its hold (%v) was used up before, and is earned by forwarding",
				w.lostWith.Round(time.Second), w.Hold)
		}
		return Verdict{Grade: No, Why: why, VIPs: w.vips}
	}
	v := Verdict{Grade: Yes, VIPs: w.vips, Until: end,
		Why: fmt.Sprintf("%s; it is waited for until %s (hold %v)", why, end.Format(time.TimeOnly), w.Hold)}
	if w.used.Repeats {
		v.Grade = LastResort
	}
	return v
}

// serves is the verdict about a gateway that is heard to forward.
func (w *Watch) serves(now time.Time) Verdict {
	u := w.usedAt(now)
	if !u.Repeats {
		return Verdict{Grade: Yes, VIPs: w.vips}
	}
	until := now.Add(holdRefill * (u.Spent - w.Hold/2))
	return Verdict{Grade: LastResort, VIPs: w.vips, Until: until, Why: fmt.Sprintf("the gateway's process ended "+
		"several times and was away for longer than its hold (%v): other gateways are preferred until %s", w.Hold,
		until.Format(time.TimeOnly))}
}
