package daemon

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"sluice.dev/sluice/gateway/handover"
)

// TestReadyWhenRefused: a waiting process is ready only if the end of the running one would help:
// not if it cannot start itself, however often it asks, and not if its version has failed to take
// over.
func TestReadyWhenRefused(t *testing.T) {
	differs := &handover.RefusedError{Reasons: []string{"frames: other sizes"}}
	barred := &handover.RefusedError{Reasons: []string{"3 attempts failed"}, Barred: true}
	unable := &handover.UnableError{Err: errors.New("no interface eth5")}
	can := func() error { return nil }
	cannot := func() error { return errors.New("no file token") }
	five := func(err error) []error { return []error{err, err, err, err, err} }
	for _, c := range []struct {
		name   string
		errs   []error
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
		var r requests
		for _, err := range c.errs {
			r.noteFailed(slog.New(slog.DiscardHandler), err, c.able)
		}
		v := r.view.Load()
		if r.ready.Load() != c.ready || v.Unable != c.unable || v.Asked != len(c.errs) {
			t.Errorf("%s: ready %v, want %v; %+v", c.name, r.ready.Load(), c.ready, v)
		}
	}
}

// TestUnableIsLoggedAsUnable: the log of a process that cannot take over does not blame the running
// process.
func TestUnableIsLoggedAsUnable(t *testing.T) {
	var log strings.Builder
	var r requests
	for range 3 {
		r.noteFailed(slog.New(slog.NewTextHandler(&log, nil)),
			&handover.UnableError{Err: errors.New("no interface eth5")}, nil)
	}
	s := log.String()
	if strings.Count(s, "this process can neither take over") != 1 || strings.Contains(s, "does not hand over") {
		t.Errorf("the log is %s", s)
	}
}
