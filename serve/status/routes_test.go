package status

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRoutes: every request is listed with its access, so that a new one must choose. Requests with
// full access are refused by the server for readers, before the gateway sees them.
func TestRoutes(t *testing.T) {
	want := map[string]access{
		"GET /services": reads, "GET /backends": reads, "GET /times": reads, "GET /stats": reads,
		"GET /source-ports": reads, "GET /status": reads, "GET /explain": reads, "GET /flows": reads,
		"GET /denials": reads, "GET /events": reads,
		"GET /drops": reads, "DELETE /flows": full, "POST /captures": full, "GET /profiles/{kind}": full,
		"PUT /drains/{backend...}": full, "DELETE /drains/{backend...}": full,
		"PUT /denials/{client...}": full, "DELETE /denials/{client...}": full,
	}
	got := map[string]access{}
	s := NewReadServer(nil, slog.New(slog.DiscardHandler), "/run/full.sock")
	for _, r := range s.routes() {
		got[r.method+" "+r.path] = r.access
		if r.access == reads {
			continue
		}
		w := httptest.NewRecorder()
		s.http.Handler.ServeHTTP(w, httptest.NewRequest(r.method, root+strings.ReplaceAll(r.path, "...", ""), nil))
		if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "--socket /run/full.sock") {
			t.Errorf("%s %s: %d %s", r.method, r.path, w.Code, w.Body)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
