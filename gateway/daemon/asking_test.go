package daemon

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"sluice.dev/sluice/gateway/handover"
)

// TestReadyWhenRefused: a waiting process is ready only where the running one's end helps: not
// where it cannot start itself, however often it asks, and not where its version is refused as it
// has failed.
func TestReadyWhenRefused(t *testing.T) {
	differs := &handover.RefusedError{Reasons: []string{"frames: other sizes"}}
	barred := &handover.RefusedError{Reasons: []string{"3 attempts failed"}, Barred: true}
	unable := &handover.UnableError{Err: errors.New("no interface eth5")}
	can := func() error { return nil }
	cannot := func() error { return errors.New("no file token") }
	five := func(err error) []error { return []error{err, err, err, err, err} }
	for _, c := range []struct {
		name   string
		came   []error
		able   func() error
		ready  bool
		unable string
	}{
		{"four refusals", five(differs)[1:], can, false, ""},
		{"five refusals", five(differs), can, true, ""},
		{"five refusals of one that could not start", five(differs), cannot, false, "no file token"},
		{"it cannot take over itself", five(unable), can, false, "no interface eth5"},
		{"it could not, and can now", append(five(unable), five(differs)...), can, true, ""},
		{"it could, and cannot any more", append(five(differs), unable), can, false, "no interface eth5"},
		{"its version has failed", append(five(differs), five(barred)...), can, false, ""},
	} {
		d := &Daemon{log: slog.New(slog.DiscardHandler)}
		for _, err := range c.came {
			d.noteVain(err, c.able)
		}
		v := d.takenOver.Load()
		if d.asked.ready.Load() != c.ready || v.Unable != c.unable || v.Asked != len(c.came) {
			t.Errorf("%s: ready %v, want %v; %+v", c.name, d.asked.ready.Load(), c.ready, v)
		}
	}
}

// TestWhoIsToBlame: the log of a process that cannot take over does not say that of the running
// one.
func TestWhoIsToBlame(t *testing.T) {
	var log strings.Builder
	d := &Daemon{log: slog.New(slog.NewTextHandler(&log, nil))}
	for range 3 {
		d.noteVain(&handover.UnableError{Err: errors.New("no interface eth5")}, nil)
	}
	s := log.String()
	if strings.Count(s, "this process cannot take over") != 1 || strings.Contains(s, "does not hand over") {
		t.Errorf("the log is %s", s)
	}
}
