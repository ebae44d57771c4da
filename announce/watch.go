package announce

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"sluice.dev/sluice/announce/pulse"
)

// MaxHold is the longest hold: after that time the kernel program gives packets to the kernel
// (tuning.passAfter, ADR 3), and flows are no longer kept.
const MaxHold = 30 * time.Second

// DefaultHold is how long routes stay after the gateway's process has ended. A restarted process
// forwards within 0.7 s (docs/operations.md). systemd restarts a crashed process at once, and so
// does the kubelet the first time; in a rollout the next pod follows some seconds later. A TCP
// client that connects meanwhile repeats its SYN after 1, 3 and 7 s and gets an answer by then. If
// no process follows, clients of this gateway's VIPs wait for the hold.
const DefaultHold = 10 * time.Second

// holdRefill is how long a gateway must forward to earn one second of hold. Hand-overs once a
// minute may each take 8 s of 60 without a withdrawal; for a process that forwards for a shorter
// time, routes stay for at most a seventh of the time.
const holdRefill = 6

// Grade is how far a VIP, a node or a gateway is announced.
type Grade int

// The grades, in ascending order.
const (
	No         Grade = iota // not announced
	LastResort              // announced, but routers prefer any other gateway
	Leaving                 // announced as about to be withdrawn: routers prefer others (RFC 8326)
	Yes
)

func (g Grade) String() string { return [...]string{"no", "last resort", "leaving", "yes"}[g] }

// Verdict is the decision about the gateway as a whole.
type Verdict struct {
	Grade Grade
	Why   string // why Grade is not Yes, or that the gateway is lost and held
	VIPs  []pulse.VIP
	// Sources are source addresses of the gateway's group.
	Sources []pulse.Source
	// Until is when the Verdict changes without an event; zero: never.
	Until time.Time
}

// Serves reports whether the gateway's pulse arrives and it forwards.
func (v *Verdict) Serves() bool { return v.Grade == Yes && v.Until.IsZero() }

// Watch decides from the gateway's pulse whether its VIPs are announced. Its zero value has no
// pulse yet.
//
// Hold is a budget: the time for which routes stayed without a pulse is spent, and is earned again
// by forwarding (holdRefill). A process that ends again and again spends all of it, and then its
// routes are withdrawn with each end. After that it is announced as LastResort, until it has earned
// half of the budget.
//
// There is no hold while other gateways have copies of the gateway's flows: routes to them are
// better at once.
type Watch struct {
	Hold time.Duration

	sight      pulse.Sight
	vips       []pulse.VIP    // served when the gateway forwarded last
	pending    changes        // of sight.State since vips
	unreported changes        // of vips since the last call of Changes
	interfaces []string       // that the gateway serves, as last reported; nil: unknown
	sources    []pulse.Source // of the last pulse with VIPs
	copied     bool           // other gateways had copies of its flows in its last pulse with VIPs
	forwarded  bool           // it forwarded in its last pulse, or for the previous announcer
	lostSince  time.Time      // when it stopped forwarding or its pulse stopped; zero: it forwards

	used        HoldUsed      // of Hold, at the time counted
	counted     time.Time     // zero: no pulse yet
	spentAtLoss time.Duration // used.Spent at lostSince
}

// changes are the VIPs that may have changed between two times: the listed ones, or all.
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

// take returns the changes, and clears them.
func (c *changes) take() changes {
	taken := *c
	*c = changes{}
	return taken
}

// HoldUsed is the part of a Watch that the next announcer needs.
type HoldUsed struct {
	// Spent is the used part of the hold, from 0 to Watch.Hold.
	Spent time.Duration `json:"spent,omitempty"`
	// Repeats: the gateway did not return within its hold, and had not earned the whole hold again
	// since its previous end.
	Repeats bool `json:"repeats,omitempty"`
}

// Restore sets the result of Used in the previous announcer.
func (w *Watch) Restore(u HoldUsed) { w.used = u }

// Used returns the state for the next process. Times are whole seconds, rounded up, so that the
// value changes rarely. While the gateway is held, the current second counts as spent.
func (w *Watch) Used(now time.Time) HoldUsed {
	u := w.usedAt(now)
	if w.holds() {
		u.Spent += time.Second
	} else {
		u.Spent += time.Second - 1
	}
	u.Spent = min(u.Spent.Truncate(time.Second), w.Hold)
	return u
}

// Resume sets the VIPs that the previous announcer announced. The gateway is held as if it had been
// lost now, and for pulse.Silence even if the hold is used up: it may forward, and none of its
// pulses was read yet.
func (w *Watch) Resume(vips []pulse.VIP, now time.Time) {
	w.count(now)
	w.vips, w.forwarded, w.lostSince = vips, true, now
	w.pending.all, w.unreported.all = true, true
	w.spentAtLoss = min(w.used.Spent, max(w.Hold-pulse.Silence, 0))
	w.sight = pulse.Sight{Lost: "no pulse of the gateway was read yet", At: now}
}

// See takes a sight of the gateway.
func (w *Watch) See(s pulse.Sight, now time.Time) {
	w.count(now)
	if s.State != w.sight.State {
		w.pending.add(changes{all: s.Since == nil || s.Since != w.sight.State, list: s.Changed})
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
		w.forwarded, w.lostSince = len(s.State.Failures) == 0, time.Time{}
		w.setVIPs(s.State)
	case s.State.Phase == pulse.Draining:
		w.forwarded = false // no process follows
		w.setVIPs(s.State)
	default:
		w.lose(now)
	}
}

// setVIPs takes the addresses of the last state.
func (w *Watch) setVIPs(s *pulse.State) {
	w.vips, w.sources, w.copied = s.VIPs, s.Sources, s.Copied
	w.unreported.add(w.pending.take())
}

// Changes returns the addresses whose VIPs in a Verdict may have changed since the last call; all:
// any may have.
func (w *Watch) Changes() (list []netip.Addr, all bool) {
	c := w.unreported.take()
	return c.list, c.all
}

func (w *Watch) lose(now time.Time) {
	if w.lostSince.IsZero() {
		w.lostSince, w.spentAtLoss = now, w.used.Spent
	}
}

// lost reports whether a gateway that forwarded does not any more.
func (w *Watch) lost() bool { return w.forwarded && !w.lostSince.IsZero() }

// holds reports whether a lost gateway uses its hold.
func (w *Watch) holds() bool { return w.lost() && !w.copied }

// count updates used.
func (w *Watch) count(now time.Time) { w.used, w.counted = w.usedAt(now), now }

// usedAt returns the used hold at a time.
func (w *Watch) usedAt(now time.Time) HoldUsed {
	u := w.used
	passed := now.Sub(w.counted)
	switch {
	case w.counted.IsZero() || !w.forwarded || w.lost() && w.copied:
	case w.holds():
		u.Spent = min(u.Spent+passed, w.Hold)
		u.Repeats = u.Repeats || w.spentAtLoss > 0 && u.Spent == w.Hold
	default:
		u.Spent = max(u.Spent-passed/holdRefill, 0)
		u.Repeats = u.Repeats && u.Spent > w.Hold/2
	}
	return u
}

// holdEnds returns the end of the hold. The gateway must be lost.
func (w *Watch) holdEnds() time.Time {
	if w.copied {
		return w.lostSince
	}
	return w.lostSince.Add(w.Hold - min(w.spentAtLoss, w.Hold))
}

// Known reports whether the gateway's state is known, or its hold has ended. Before that, a new
// announcer must withdraw no routes.
func (w *Watch) Known(now time.Time) bool {
	if w.sight.State != nil && w.sight.Lost == "" && w.sight.State.Phase != pulse.Opening {
		return true
	}
	return !w.lostSince.IsZero() && !now.Before(w.holdEnds())
}

// Verdict returns the decision about the gateway at a time.
func (w *Watch) Verdict(now time.Time) Verdict {
	v := w.verdict(now)
	v.VIPs, v.Sources = w.vips, w.sources
	return v
}

// verdict returns a Verdict without addresses.
func (w *Watch) verdict(now time.Time) Verdict {
	s := w.sight
	if s.State != nil && s.Lost == "" {
		switch s.State.Phase {
		case pulse.Serving:
			if len(s.State.Failures) > 0 {
				return Verdict{Grade: No, Why: strings.Join(s.State.Failures, "; ")}
			}
			return w.serves(now)
		case pulse.Draining:
			return Verdict{Grade: Leaving, Why: "the gateway drains, and ends"}
		}
	}
	why := s.Lost
	switch {
	case why != "":
	case s.State == nil:
		why = "no pulse of the gateway has arrived yet"
	case s.State.Phase == pulse.HandingOver:
		why = "the gateway's process ends and hands over"
	default:
		why = "the gateway's process starts"
	}
	end := w.holdEnds()
	if !w.forwarded || !now.Before(end) {
		switch {
		case w.lost() && w.copied:
			why += "; other gateways have copies of its flows"
		case w.forwarded && w.spentAtLoss > 0:
			why += fmt.Sprintf("; %v of its hold (%v) was used up before, and is earned by forwarding",
				w.spentAtLoss.Round(time.Second), w.Hold)
		}
		return Verdict{Grade: No, Why: why}
	}
	v := Verdict{Grade: Yes, Until: end,
		Why: fmt.Sprintf("%s; it is waited for until %s (hold %v)", why, end.Format(time.TimeOnly), w.Hold)}
	if w.used.Repeats {
		v.Grade = LastResort
	}
	return v
}

// serves returns the verdict about a gateway whose pulse reports that it forwards.
func (w *Watch) serves(now time.Time) Verdict {
	u := w.usedAt(now)
	if !u.Repeats {
		return Verdict{Grade: Yes}
	}
	until := now.Add(holdRefill * (u.Spent - w.Hold/2))
	return Verdict{Grade: LastResort, Until: until, Why: fmt.Sprintf("the gateway's process ended "+
		"several times and was away for longer than its hold (%v): other gateways are preferred until %s", w.Hold,
		until.Format(time.TimeOnly))}
}
