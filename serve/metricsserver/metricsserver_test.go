package metricsserver

import (
	"net/http/httptest"
	"testing"
)

// TestAnswer: a probe gets the stalled loops, and an error by its code.
func TestAnswer(t *testing.T) {
	for _, c := range []struct {
		stalled []string
		code    int
		text    string
	}{
		{nil, 200, "ok\n"},
		{[]string{"lease: stalled", "writer 3: stalled"}, 503, "lease: stalled\nwriter 3: stalled\n"},
	} {
		w := httptest.NewRecorder()
		if answer(w, c.stalled); w.Code != c.code || w.Body.String() != c.text {
			t.Errorf("%q: %d %q, want %d %q", c.stalled, w.Code, w.Body, c.code, c.text)
		}
	}
}
