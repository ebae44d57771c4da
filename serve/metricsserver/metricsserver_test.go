package metricsserver

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"sluice.dev/sluice/internal/heartbeat"
)

// TestReady: a process that waits is not ready, and is alive.
func TestReady(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	why := []string{"it waits"}
	if err := Start(t.Context(), address, slog.New(slog.DiscardHandler), &heartbeat.Set{},
		func() []string { return why }); err != nil {
		t.Fatal(err)
	}
	want := func(path string, code int, text string) {
		t.Helper()
		r, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if got, err := io.ReadAll(r.Body); r.StatusCode != code || string(got) != text {
			t.Errorf("%s: %d %q, %v, want %d %q", path, r.StatusCode, got, err, code, text)
		}
	}
	want("/readyz", http.StatusServiceUnavailable, "it waits\n")
	want("/healthz", http.StatusOK, "ok\n")
	why = nil
	want("/readyz", http.StatusOK, "ok\n")
}

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
