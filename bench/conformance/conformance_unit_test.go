package conformance

import (
	"testing"
)

// add starts a system in a topology of its own.
func (r *run) add(t *testing.T, name string, wants func(*result) string, start func(*world) (system, error)) {
	t.Helper()
	w, err := newWorld()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Errorf("close the network: %v", err)
		}
		if left, err := w.Leftovers(); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	})
	s, err := start(w)
	if err != nil {
		t.Fatal(err)
	}
	x := &subject{system: s, name: name, prober: newProber(w), wants: wants}
	x.prober.drops = func(reason string) (uint64, error) { return s.dropped(t.Context(), reason) }
	t.Cleanup(func() {
		x.prober.close()
		if t.Failed() {
			t.Logf("%s logged:\n%s", name, s.log())
		}
		if err := s.stop(); err != nil {
			t.Errorf("stop %s: %v", name, err)
		}
	})
	r.subjects = append(r.subjects, x)
}
