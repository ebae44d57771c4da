package announce

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/control/pulse"
)

// TestWatch follows a gateway through its life. Each step is what is seen, when, and the verdict.
func TestWatch(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	vips := []pulse.VIP{{Address: netip.MustParseAddr("192.0.2.1")}}
	state := func(p pulse.Phase, failures ...string) pulse.Sight {
		return pulse.Sight{State: &pulse.State{Phase: p, Failures: failures, VIPs: vips}}
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

// A process that starts again holds what the one before announced, until it has heard the gateway
// or waited for it.
func TestResume(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	vips := []pulse.VIP{{Address: netip.MustParseAddr("192.0.2.1")}}
	w := Watch{Hold: 10 * time.Second}
	w.Resume(vips, now)
	w.See(pulse.Sight{Lost: "no socket"}, now.Add(time.Second))
	if v := w.Verdict(now.Add(9 * time.Second)); v.Grade != Yes || len(v.VIPs) != 1 || w.Heard(now.Add(9*time.Second)) {
		t.Errorf("after 9 s: %+v", v)
	}
	if v := w.Verdict(now.Add(10 * time.Second)); v.Grade != No || !w.Heard(now.Add(10*time.Second)) {
		t.Errorf("after 10 s: %+v", v)
	}
	w.See(pulse.Sight{State: &pulse.State{Phase: pulse.Opening}}, now.Add(2*time.Second))
	if w.Heard(now.Add(3 * time.Second)) {
		t.Error("a gateway that opens is heard")
	}
	w.See(pulse.Sight{State: &pulse.State{Phase: pulse.Serving}}, now.Add(4*time.Second))
	now = now.Add(4 * time.Second)
	if v := w.Verdict(now); !w.Heard(now) || v.Grade != Yes || len(v.VIPs) != 0 {
		t.Errorf("a gateway that serves: %+v", v)
	}
}
