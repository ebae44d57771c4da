package announce

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/announce/pulse"
)

// TestWatch follows a gateway through its phases. Each step has a sight, its time, and the verdict.
func TestWatch(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	vips := []pulse.VIP{{Address: netip.MustParseAddr("192.0.2.1")}}
	state := func(p pulse.Phase, failures ...string) pulse.Sight {
		return pulse.Sight{State: &pulse.State{Phase: p, Failures: failures, VIPs: vips}}
	}
	copied := func(p pulse.Phase) pulse.Sight {
		s := state(p)
		s.State.Copied = true
		return s
	}
	lost := func(s pulse.Sight) pulse.Sight { s.Lost = "ended"; return s }
	empty := pulse.Sight{State: &pulse.State{Phase: pulse.Opening}}
	never := pulse.Sight{Lost: "no socket"}
	type step struct {
		after time.Duration
		see   *pulse.Sight
		want  Grade
		why   string
	}
	at := func(after time.Duration, s pulse.Sight, want Grade, why string) step {
		return step{after, &s, want, why}
	}
	later := func(after time.Duration, want Grade, why string) step { return step{after, nil, want, why} }
	const s = time.Second
	for name, c := range map[string]struct {
		hold  time.Duration
		steps []step
	}{
		"a crash and its restart": {10 * s, []step{
			at(0, never, No, "no socket"), at(s, empty, No, "starts"), at(2*s, state(pulse.Serving), Yes, ""),
			at(3*s, lost(state(pulse.Serving)), Yes, "waited for until 03:04:18"), at(4*s, empty, Yes, "starts"),
			later(12*s, Yes, "starts"), at(12*s, state(pulse.Serving), Yes, ""), later(60*s, Yes, ""),
		}},
		"a crash and no restart": {10 * s, []step{
			at(0, state(pulse.Serving), Yes, ""), at(s, lost(state(pulse.Serving)), Yes, "waited"), later(10*s, Yes,
				"waited"),
			later(11*s, No, "ended"), at(12*s, empty, No, "starts"), at(13*s, state(pulse.Serving), Yes, ""),
		}},
		"without hold": {0, []step{
			at(0, state(pulse.Serving), Yes, ""), at(s, lost(state(pulse.Serving)), No, "ended"),
			at(2*s, empty, No, "starts"),
		}},
		"a crash while others have copies": {10 * s, []step{
			at(0, copied(pulse.Serving), Yes, ""), at(s, lost(copied(pulse.Serving)), No, "ended; other gateways have"),
			at(2*s, empty, No, "starts; other gateways have"), at(3*s, state(pulse.Serving), Yes, ""),
			at(4*s, lost(state(pulse.Serving)), Yes, "waited for until 03:04:19"), // the whole hold
		}},
		"a hand-over while others have copies": {10 * s, []step{
			at(0, copied(pulse.Serving), Yes, ""), at(s, copied(pulse.HandingOver), No,
				"hands over; other gateways have"),
		}},
		"a hand-over": {10 * s, []step{
			at(0, state(pulse.Serving), Yes, ""), at(s, state(pulse.HandingOver), Yes, "hands over"),
			at(s, lost(state(pulse.HandingOver)), Yes, "waited"), at(2*s, state(pulse.Serving), Yes, ""),
		}},
		"an end that nobody follows": {10 * s, []step{
			at(0, state(pulse.Serving), Yes, ""), at(s, state(pulse.Draining), Leaving, "drains"),
			at(2*s, lost(state(pulse.Draining)), No, "ended"),
		}},
		"a failure is not waited for": {10 * s, []step{
			at(0, state(pulse.Serving), Yes, ""), at(s, state(pulse.Serving, "back0 is down"), No, "back0 is down"),
			at(2*s, lost(state(pulse.Serving, "back0 is down")), No, "ended"), at(3*s, empty, No, "starts"),
			at(4*s, state(pulse.Serving), Yes, ""),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := Watch{Hold: c.hold}
			for i, s := range c.steps {
				now := begin.Add(s.after)
				if s.see != nil {
					w.See(*s.see, now)
				}
				got := w.Verdict(now)
				if got.Grade != s.want || !strings.Contains(got.Why, s.why) || s.why == "" && got.Why != "" {
					t.Errorf("step %d: %v %q, want %v %q", i, got.Grade, got.Why, s.want, s.why)
				}
				if heard := s.want == Yes && s.why == ""; got.Serves() != heard {
					t.Errorf("step %d: %+v: it serves: %v, want %v", i, got, got.Serves(), heard)
				}
				if got.Grade != No && len(got.VIPs) != 1 {
					t.Errorf("step %d: VIPs %v", i, got.VIPs)
				}
			}
		})
	}
}

// An announcer that starts holds the VIPs of the previous one until it knows the gateway's state or
// the hold ends.
func TestResume(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	vips := []pulse.VIP{{Address: netip.MustParseAddr("192.0.2.1")}}
	w := Watch{Hold: 10 * time.Second}
	w.Resume(vips, now)
	w.See(pulse.Sight{Lost: "no socket"}, now.Add(time.Second))
	if v := w.Verdict(now.Add(9 * time.Second)); v.Grade != Yes || len(v.VIPs) != 1 || w.Known(now.Add(9*time.Second)) {
		t.Errorf("after 9 s: %+v", v)
	}
	if v := w.Verdict(now.Add(10 * time.Second)); v.Grade != No || !w.Known(now.Add(10*time.Second)) {
		t.Errorf("after 10 s: %+v", v)
	}
	w.See(pulse.Sight{State: &pulse.State{Phase: pulse.Opening}}, now.Add(2*time.Second))
	if w.Known(now.Add(3 * time.Second)) {
		t.Error("a gateway that opens is heard")
	}
	w.See(pulse.Sight{State: &pulse.State{Phase: pulse.Serving}}, now.Add(4*time.Second))
	now = now.Add(4 * time.Second)
	if v := w.Verdict(now); !w.Known(now) || v.Grade != Yes || len(v.VIPs) != 0 {
		t.Errorf("a gateway that serves: %+v", v)
	}
}

// life is a series of times: the gateway's process forwards, then it is away, again and again.
type life struct {
	hold time.Duration
	// cycle returns how long it forwards, and how long it is away after that.
	cycle func(i int) (serves, away time.Duration)
	times int
	// restarts is how often the announcer is restarted while the gateway is away.
	restarts time.Duration
}

// outcome has the effects on routes.
type outcome struct {
	away, held  time.Duration // the gateway did not forward; thereof, it was announced
	withdrawals int
	last        time.Duration // announced as the last resort while it forwarded
}

// live runs a life in steps of 50 ms.
func (l *life) live() (o outcome) {
	const step = 50 * time.Millisecond
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	vips := []pulse.VIP{{Address: netip.MustParseAddr("192.0.2.1")}}
	w := &Watch{Hold: l.hold}
	grade := No
	pass := func(d time.Duration, serves bool) {
		for end, started := now.Add(d), now; now.Before(end); now = now.Add(step) {
			if !serves && l.restarts > 0 && now.Sub(started) >= l.restarts {
				used := w.Used(now)
				w, started = &Watch{Hold: l.hold}, now
				w.Restore(used)
				if grade != No {
					w.Resume(vips, now)
				}
			}
			v := w.Verdict(now)
			if grade != No && v.Grade == No {
				o.withdrawals++
			}
			switch grade = v.Grade; {
			case !serves:
				if o.away += step; grade != No {
					o.held += step
				}
			case grade == LastResort:
				o.last += step
			}
		}
	}
	for i := range l.times {
		serves, away := l.cycle(i)
		w.See(pulse.Sight{State: &pulse.State{Phase: pulse.Serving, VIPs: vips}}, now)
		pass(serves, true)
		w.See(pulse.Sight{Lost: "ended"}, now)
		pass(away, false)
	}
	return o
}

// TestHoldIsEarned: a process that ends again and again is held only as long as it has earned by
// forwarding, and other gateways are preferred. One that rarely ends is held for the whole hold.
func TestHoldIsEarned(t *testing.T) {
	t.Parallel()
	const s, ms = time.Second, time.Millisecond
	same := func(serves, away time.Duration) func(int) (time.Duration, time.Duration) {
		return func(int) (time.Duration, time.Duration) { return serves, away }
	}
	backOff := func(i int) (time.Duration, time.Duration) { // of the kubelet: 10 s, doubled to 5 min
		return 2 * s, min(10*s<<i, 300*s)
	}
	for name, c := range map[string]struct {
		life
		held        time.Duration // at most; each time at most one step more
		whole       bool          // it is held all the time that it is away, up to the hold
		withdrawals bool
		last        bool
	}{
		"9 of 84 s":               {life{10 * s, same(s, 8300*ms), 9, 0}, 10*s + 9*s/6 + s, false, true, true},
		"1 of 10 s":               {life{10 * s, same(s, 9*s), 60, 0}, 10*s + 60*s/6 + s, false, true, true},
		"1 of 10 s, 30 s of hold": {life{30 * s, same(s, 9*s), 60, 0}, 30*s + 60*s/6 + s, false, true, true},
		"half of the time, 0.5 s each": {life{10 * s, same(500*ms, 500*ms), 600, 0}, 10*s + 300*s/6 + s, false, true,
			true},
		"back-off of the kubelet": {life{10 * s, backOff, 8, 0}, 10*s + 16*s/6 + s, false, true, true},
		"back-off, the announcer ends, too, each 3 s": {life{10 * s, backOff, 8, 3 * s}, 10*s + 16*s/6 + s, false,
			true, true},
		"9 of 84 s, the announcer ends, too, each second": {life{10 * s, same(s, 8300*ms), 9, s}, 10*s + 9*s/6 + s,
			false, true, true},
		"away for 60 s each time, 20 s between": {life{10 * s, same(20*s, 60*s), 20, 0}, 10*s + 400*s/6 + s, false,
			true, true},
		"a hand-over each minute":  {life{10 * s, same(59*s, s), 600, 0}, 600 * s, true, false, false},
		"a slow one each minute":   {life{10 * s, same(52*s, 8*s), 100, 0}, 800 * s, true, false, false},
		"a crash a day":            {life{10 * s, same(24*time.Hour, 2*s), 3, 0}, 6 * s, true, false, false},
		"a crash a day, 60 s each": {life{10 * s, same(24*time.Hour, 60*s), 3, 0}, 30 * s, true, true, false},
		"no hold":                  {life{0, same(s, 9*s), 10, 0}, 0, false, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := c.life.live()
			t.Logf("away %v, held %v, %d withdrawals, last resort %v", o.away, o.held, o.withdrawals, o.last)
			if o.held > c.held+time.Duration(c.times)*50*ms {
				t.Errorf("held for %v of %v, want at most %v", o.held, o.away, c.held)
			}
			if c.whole && o.held < c.held {
				t.Errorf("held for %v of %v, want %v", o.held, o.away, c.held)
			}
			if got := o.withdrawals > 0; got != c.withdrawals {
				t.Errorf("%d withdrawals", o.withdrawals)
			}
			if got := o.last > 0; got != c.last {
				t.Errorf("the last resort for %v", o.last)
			}
		})
	}
}

// A gateway whose process ended again and again is announced normally when it has earned half of
// its hold, and has earned all of it after a minute for each 10 s.
func TestHoldIsEarnedAgain(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w := Watch{Hold: 10 * time.Second}
	serving := pulse.Sight{State: &pulse.State{Phase: pulse.Serving}}
	for range 2 {
		w.See(serving, now)
		now = now.Add(time.Second)
		w.See(pulse.Sight{Lost: "ended"}, now)
		now = now.Add(20 * time.Second)
	}
	// A restarted announcer withdraws no route before it knows the gateway's state.
	next := Watch{Hold: w.Hold}
	next.Restore(w.Used(now))
	next.Resume([]pulse.VIP{{}}, now)
	if v := next.Verdict(now.Add(pulse.Silence - 1)); v.Grade != LastResort || next.Known(now.Add(pulse.Silence-1)) {
		t.Errorf("the next announcer, before it hears the gateway: %+v", v)
	}
	if v := next.Verdict(now.Add(pulse.Silence)); v.Grade != No {
		t.Errorf("the next announcer does not hear the gateway: %+v", v)
	}
	w.See(serving, now)
	v := w.Verdict(now)
	if v.Grade != LastResort || v.Serves() || v.Until.Sub(now) != 30*time.Second {
		t.Errorf("%+v, want the last resort for 30 s", v)
	}
	if v := w.Verdict(now.Add(30 * time.Second)); v.Grade != Yes || !v.Serves() {
		t.Errorf("after 30 s: %+v", v)
	}
	w.See(pulse.Sight{Lost: "ended"}, now.Add(30*time.Second))
	if v := w.Verdict(now.Add(31 * time.Second)); v.Grade != Yes || !v.Until.Equal(now.Add(35*time.Second)) {
		t.Errorf("half of the hold is there: %+v", v)
	}
	w.See(serving, now.Add(32*time.Second))
	if used := w.Used(now.Add(92 * time.Second)); used != (HoldUsed{}) {
		t.Errorf("a minute later %+v is used", used)
	}
}
