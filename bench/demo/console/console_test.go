package console

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestVerdict(t *testing.T) {
	for _, tc := range []struct {
		name    string
		results []bool
		failed  bool
		want    string
	}{
		{"all met", []bool{true, true}, false, "All 2 expectations met in"},
		{"one of three not met", []bool{true, false, true}, true, "1 FAILED, 2 met after"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			p := New(&out)
			for _, ok := range tc.results {
				p.Expect(ok, "something")
			}
			if err := p.verdict(); errors.Is(err, ErrExpectation) != tc.failed {
				t.Errorf("error %v", err)
			}
			if !strings.Contains(out.String(), tc.want) {
				t.Errorf("got %q, want %q", out.String(), tc.want)
			}
		})
	}
}

// TestEnd: the error names the failure, and everything is removed in any case.
func TestEnd(t *testing.T) {
	broken := errors.New("no network")
	for _, tc := range []struct {
		name             string
		err, removing    error
		interrupted, met bool
		want             string
		is               error
	}{
		{"all met", nil, nil, false, true, "All 1 expectations met", nil},
		{"not met", nil, nil, false, false, "1 FAILED, 0 met", ErrExpectation},
		{"cannot be done", broken, nil, false, true, "- the demo can be carried out: no network", ErrExpectation},
		{"something is left", nil, broken, false, true, "- everything is removed: no network", ErrExpectation},
		{"interrupted", context.Canceled, nil, true, true, "interrupted; everything is being removed", ErrInterrupted},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tc.interrupted {
				cancel()
			}
			var out strings.Builder
			removed := false
			p := New(&out)
			p.Expect(tc.met, "something")
			err := p.End(ctx, tc.err, func() {}, func() error { removed = true; return tc.removing })
			if !errors.Is(err, tc.is) || !removed || !strings.Contains(out.String(), tc.want) {
				t.Errorf("error %v, removed: %v, printed:\n%s", err, removed, out.String())
			}
		})
	}
}

// TestPlay: parts are numbered, and the first failure or an interruption ends the sequence.
func TestPlay(t *testing.T) {
	var out strings.Builder
	p := New(&out)
	broken := errors.New("no network")
	did := 0
	do := func(err error) func(context.Context) error {
		return func(context.Context) error { did++; return err }
	}
	err := p.Play(t.Context(), []Part{{"first", do(nil)}, {"second", do(broken)}, {"third", do(nil)}})
	if !errors.Is(err, broken) || did != 2 || !strings.Contains(out.String(), "2. second") {
		t.Errorf("%v after %d parts:\n%s", err, did, out.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	stop := func(context.Context) error { cancel(); p.Expect(false, "nothing is checked"); return broken }
	if err := p.Play(ctx, []Part{{"first", stop}}); !errors.Is(err, context.Canceled) ||
		strings.Contains(out.String(), "FAILED") {
		t.Errorf("interrupted: %v\n%s", err, out.String())
	}
}
