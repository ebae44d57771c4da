package ui

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// page is a server at a port of the loopback.
type page struct {
	*testing.T
	server *Server
	url    string
}

// serve serves the page of a gateway's socket until the test ends.
func serve(t *testing.T, socket string) *page {
	t.Helper()
	s, err := New(status.NewClient(socket))
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(t.Context(), l) }()
	t.Cleanup(func() { // after the context of the test has ended
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &page{t, s, s.URL(l)}
}

// daemon serves a sample gateway on a socket, and returns the socket and a function that stops it.
func daemon(t *testing.T, g status.Gateway) (socket string, stop func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := status.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	s := status.NewReadServer(g, slog.New(slog.DiscardHandler), "/none") // the page must not need more
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		if err := errors.Join(s.Shutdown(t.Context()), <-done); err != nil {
			t.Error(err)
		}
	}
	return path, stop
}

// get sends a request to a path below the secret, and returns status, headers and body.
func (p *page) get(path string, change ...func(*http.Request)) (int, http.Header, string) {
	p.Helper()
	r, err := http.NewRequestWithContext(p.Context(), http.MethodGet, p.url+path, nil)
	if err != nil {
		p.Fatal(err)
	}
	for _, f := range change {
		f(r)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		p.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		p.Fatal(err)
	}
	return response.StatusCode, response.Header, string(body)
}

// TestRefusals: only a GET request of the page itself, to a loopback name and with the secret, is
// answered.
func TestRefusals(t *testing.T) {
	socket, stop := daemon(t, statustest.New())
	defer stop()
	p := serve(t, socket)
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	method := func(name string) func(*http.Request) { return func(r *http.Request) { r.Method = name } }
	secret := func(to string) func(*http.Request) {
		return func(r *http.Request) { r.URL.Path = strings.Replace(r.URL.Path, p.server.secret, to, 1) }
	}
	own := strings.TrimSuffix(strings.TrimSuffix(p.url, "/"), "/"+p.server.secret)
	for _, c := range []struct {
		name   string
		change func(*http.Request)
		code   int
		says   string
	}{
		{"plain", header("X", ""), 200, ""},
		{"localhost", host("localhost:9475"), 200, ""},
		{"upper case", host("LOCALHOST"), 200, ""},
		{"another loopback address", host("127.8.0.1:80"), 200, ""},
		{"IPv6", host("[::1]:9475"), 200, ""},
		{"the page itself", header("Sec-Fetch-Site", "same-origin"), 200, ""},
		{"typed", header("Sec-Fetch-Site", "none"), 200, ""},
		{"own origin", header("Origin", own), 200, ""},

		{"rebound name", host("evil.example:9475"), 403, "loopback names alone"},
		{"name below localhost", host("localhost.evil.example"), 403, "loopback names alone"},
		{"another address", host("192.0.2.1:9475"), 403, "loopback names alone"},
		{"no host", host("0.0.0.0"), 403, "loopback names alone"},
		{"another site", header("Sec-Fetch-Site", "cross-site"), 403, "no other site"},
		{"another port", header("Sec-Fetch-Site", "same-site"), 403, "no other site"},
		{"another origin", header("Origin", "http://127.0.0.1:1"), 403, "no other site"},
		{"no origin", header("Origin", "null"), 403, "no other site"},
		{"POST", method("POST"), 405, "GET alone"},
		{"DELETE", method("DELETE"), 405, "GET alone"},
		{"OPTIONS", method("OPTIONS"), 405, "GET alone"},
		{"another secret", secret(strings.Repeat("A", len(p.server.secret))), 404, "ends in a secret"},
		{"no secret", secret(""), 404, "ends in a secret"},
		{"part of the secret", secret(p.server.secret[:20]), 404, "ends in a secret"},
	} {
		for _, path := range []string{"", "api/status"} {
			code, _, body := p.get(path, c.change)
			if code != c.code || !strings.Contains(body, c.says) {
				t.Errorf("%s, %q: %d %.100q, want %d and %q", c.name, path, code, body, c.code, c.says)
			}
			if code != 200 && strings.Contains(body, "gw-1") {
				t.Errorf("%s: a refusal has the answer: %q", c.name, body)
			}
		}
	}
}

// TestHeaders: every answer, also a refusal, keeps out other code, other sites and caches, and sets
// no cookie.
func TestHeaders(t *testing.T) {
	socket, stop := daemon(t, statustest.New())
	defer stop()
	p := serve(t, socket)
	for path, kind := range map[string]string{
		"": "text/html", "main.js": "text/javascript", "page.css": "text/css", "api/status": "application/json",
		"none": "text/plain", "../": "text/plain", "api/drops?over=x": "application/json",
	} {
		code, h, _ := p.get(path)
		if !strings.HasPrefix(h.Get("Content-Type"), kind) {
			t.Errorf("%q: Content-Type %q, want %s", path, h.Get("Content-Type"), kind)
		}
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Resource-Policy": "same-origin",
		} {
			if h.Get(name) != want && (code == 200 || name != "Cache-Control") {
				t.Errorf("%q: %s is %q, want %s", path, name, h.Get(name), want)
			}
		}
		csp := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'",
			"require-trusted-types-for 'script'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%q: the policy lacks %s: %q", path, want, csp)
			}
		}
		if strings.Contains(csp, "unsafe") || h.Get("Set-Cookie") != "" || h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%q: %v", path, h)
		}
	}
}

// TestAnswers: the page gets the views of the status API, unchanged.
func TestAnswers(t *testing.T) {
	g := statustest.New()
	socket, stop := daemon(t, g)
	defer stop()
	p := serve(t, socket)
	p.server.now = func() time.Time { return time.Unix(1_700_000_000, 250_000_000) }
	for path, want := range map[string]any{
		"status": g.StatusView, "stats": g.StatsView, "services": g.ServiceList, "backends": g.BackendList,
		"drops?over=1m": g.DropsView,
	} {
		code, h, body := p.get("api/" + path)
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(text)+"\n", body); code != 200 || diff != "" {
			t.Errorf("%s: %d, -want +got:\n%s", path, code, diff)
		}
		if at := h.Get(answeredAt); at != "1700000000.250000" {
			t.Errorf("%s: answered at %q", path, at)
		}
	}
	for path, says := range map[string]string{
		"flows?client=198.51.100.8": `"state":"fin_wait"`, "flows?state=none": "none of syn_sent", "flows?x=1": "is no filter",
		"flows?vip=x": "is no address, address:port", "clients": `"client":"198.51.100.7","flows":1`, "states": `"established"`,
		"events?since=2026-03-01T08:00:30Z": `"message":"interface lost"`, "events?since=now": "since is",
		"explain?from=198.51.100.7&to=192.0.2.10:80/TCP": `"verdict":"forward"`, "explain?from=x&to=y": "address and port",
		"explain?from=198.51.100.7&to=192.0.2.10:80/TCP&established=x": "established: ",
	} {
		code, _, body := p.get("api/" + path)
		if good := strings.HasPrefix(says, `"`); !strings.Contains(body, says) || good != (code == 200) || !good && code != 400 {
			t.Errorf("%s: %d %s, want %s", path, code, body, says)
		}
	}
	for _, over := range []string{"", "1", "-1m", "0s", "11m"} {
		if code, _, body := p.get("api/drops?over=" + over); code != 400 || !strings.Contains(body, "at most 10m0s") {
			t.Errorf("drops over %q: %d %s", over, code, body)
		}
	}
}

// counting is a gateway with one flow, whose bytes it counts.
type counting struct {
	*statustest.Gateway
	bytes atomic.Uint64
}

// Flows implements status.Gateway.
func (g *counting) Flows(_ *status.FlowFilter, _ uint64, _ int, page []status.FlowView) ([]status.FlowView, uint64) {
	return append(page, status.FlowView{Protocol: "TCP", Client: netip.MustParseAddrPort("198.51.100.7:40000"),
		Traffic: &status.FlowTraffic{ToBackendBytes: g.bytes.Load()}}), 0
}

// TestRatesOfTabs: the tabs of a browser share answers of a second, and no rate is over a pause.
func TestRatesOfTabs(t *testing.T) {
	g := &counting{Gateway: statustest.New()}
	socket, stop := daemon(t, g)
	defer stop()
	p := serve(t, socket)
	now := time.Unix(1_700_000_000, 0)
	p.server.now = func() time.Time { return now }
	for _, step := range []struct {
		name  string
		after time.Duration
		add   uint64 // bytes
		rated bool
		want  float64 // bytes a second
	}{
		{"first", 0, 1000, false, 0},
		{"second", 2 * time.Second, 1000, true, 500},
		{"another tab", 100 * time.Millisecond, 1000, true, 500},
		{"the first tab again", 1900 * time.Millisecond, 0, true, 500},
		{"after a pause", time.Minute, 100, false, 0},
		{"then", time.Second, 700, true, 700},
	} {
		now = now.Add(step.after)
		g.bytes.Add(step.add)
		_, _, body := p.get("api/clients")
		var v clientsView
		if err := json.Unmarshal([]byte(body), &v); err != nil || len(v.Clients) != 1 ||
			v.Clients[0].Rated != step.rated || v.Clients[0].Bytes != step.want {
			t.Errorf("%s: %s, %v, want %v bytes/s", step.name, body, err, step.want)
		}
	}
}

// TestGatewayIsGone: the page learns why there is no answer, and gets the next one when the gateway
// is there again.
func TestGatewayIsGone(t *testing.T) {
	g := statustest.New()
	socket, stop := daemon(t, g)
	p := serve(t, socket)
	stop()
	code, _, body := p.get("api/stats")
	var answer struct{ Error string }
	if err := json.Unmarshal([]byte(body), &answer); err != nil || code != 502 ||
		!strings.HasPrefix(answer.Error, status.ErrNotRunning.Error()) {
		t.Errorf("%d %s, %v", code, body, err)
	}
	if code, _, _ := p.get(""); code != 200 {
		t.Errorf("the page itself: %d", code)
	}
}

// TestAddresses: only loopback addresses, and a taken port is named.
func TestAddresses(t *testing.T) {
	for text, says := range map[string]string{
		"127.0.0.1:0": "", "[::1]:9475": "", "127.9.9.9:1": "", "[::ffff:127.0.0.1]:80": "",
		"0.0.0.0:9475": "0.0.0.0 is not a loopback address", "[::]:9475": "not a loopback address",
		"192.0.2.1:80": "by ssh -L or kubectl port-forward", "9475": "write an address and port",
		":9475": "write an address and port", "localhost:9475": "write an address and port",
	} {
		_, err := ParseAddress(text)
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
	l, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Listen(netip.MustParseAddrPort(l.Addr().String())); err == nil ||
		!strings.Contains(err.Error(), "another process listens on "+l.Addr().String()) {
		t.Errorf("a taken port: %v", err)
	}
}

// TestSecrets: two servers have different secrets.
func TestSecrets(t *testing.T) {
	a, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(nil)
	if err != nil || a.secret == b.secret || len(a.secret) < 26 { // 128 bits in base32
		t.Errorf("%q and %q, %v", a.secret, b.secret, err)
	}
}

func TestReasonsOf(t *testing.T) {
	got := reasonsOf("# Page\n| `x` | y | z |\n| reason | the packet | what to do |\n| --- | --- | --- |\n" +
		"| `a`, `b` | is `x | y`, and bad | read [this](page.md#a) |\n\n| `c` | of another table | x |\n")
	if got != nil { // a row that cannot be read is left out, and other tables are not read
		t.Errorf("%+v", got)
	}
	got = reasonsOf("# Page\n| reason | the packet | what to do |\n| --- | --- | --- |\n" +
		"| `a`, `b` | is `bad` | read [this](page.md#a), `now` |\n| `c` | is late | nothing |\n\n| `d` | of another | x |\n")
	want := []reasonView{
		{"a", "is bad", "read this, now"}, {"b", "is bad", "read this, now"}, {"c", "is late", "nothing"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
