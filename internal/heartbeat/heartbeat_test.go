package heartbeat

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestLate: a loop can be late between Beat and Rest, by its own bounds.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Set
		loop := s.Add("loop", Bounds{Unready: 15 * time.Second, Restart: time.Minute})
		want := func(what string, late, restart bool) {
			t.Helper()
			list := s.Late()
			if len(list) > 0 != late || late && list[0].Restart != restart {
				t.Errorf("%s: %+v", what, list)
			}
			if len(s.Unready()) > 0 != late || len(s.Dead()) > 0 != restart {
				t.Errorf("%s: unready %q, dead %q", what, s.Unready(), s.Dead())
			}
		}
		time.Sleep(time.Hour)
		want("before the first beat", false, false)
		loop.Beat()
		time.Sleep(14 * time.Second)
		want("in time", false, false)
		time.Sleep(time.Second)
		want("late", true, false)
		text := s.Unready()
		time.Sleep(45 * time.Second)
		want("after a minute", true, true)
		if now := s.Unready(); !slices.Equal(now, text) {
			t.Errorf("%q, and %q later", text, now)
		}
		loop.Beat()
		want("goes on", false, false)
		loop.Rest()
		time.Sleep(time.Hour)
		want("rests", false, false)
		loop.Beat()
		time.Sleep(time.Hour)
		s.Remove(loop)
		want("removed", false, false)
	})
}

// TestFileBounds: a loop that reads files can be late, but never asks for a restart.
func TestFileBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Set
		s.Add("reader", FileBounds).Beat()
		time.Sleep(24 * time.Hour)
		if len(s.Unready()) != 1 || len(s.Dead()) != 0 {
			t.Errorf("unready %q, dead %q", s.Unready(), s.Dead())
		}
	})
}

// TestNoSet: a nil Set and its loops do nothing.
func TestNoSet(t *testing.T) {
	var s *Set
	b := s.Add("loop", DefaultBounds)
	b.Beat()
	b.Rest()
	s.Remove(b)
	if s.Late() != nil {
		t.Error("a nil set has late loops")
	}
}
