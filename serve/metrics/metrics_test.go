package metrics

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
	"sluice.dev/sluice/serve/web"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// extras has all of them, with fixed times.
func extras() Extras {
	at := statustest.Start()
	k := NewKubeProxy(KubeProxyConfig{
		Waiting: func() tracker.Waiting { return tracker.Waiting{Services: 1, EndpointSlices: 3} },
		Queued:  func() time.Time { return at.Add(time.Hour) },
	})
	k.Synced(&loop.Sync{Queued: at, Started: at.Add(time.Second), Took: 3 * time.Millisecond, Services: 10,
		EndpointSlices: 20, Full: true})
	k.Synced(&loop.Sync{
		Queued: at.Add(time.Minute), Started: at.Add(time.Minute + 2*time.Millisecond), Took: time.Millisecond,
		EndpointSlices: 2,
		Triggers: []time.Time{at.Add(time.Minute - 700*time.Millisecond), at.Add(-time.Minute),
			at.Add(2 * time.Hour)},
	})
	for _, a := range []struct {
		path string
		code int
	}{{"/healthz", 200}, {"/healthz", 503}, {"/healthz", 503}, {"/livez", 200}} {
		k.Answered(a.path, a.code)
	}
	return Extras{
		Backends:  func() bool { return true },
		KubeProxy: k,
		Affinity: func() affinity.Counts {
			return affinity.Counts{Live: 5, Tentative: 3, Capacity: 262144, Evicted: 1, Lost: 2}
		},
		Start:      &flowtable.Recovery{Recovered: 4, Expired: 3, Torn: 2, Lost: 1, Missing: true},
		SelfCheck:  func() loop.SelfCheck { return loop.SelfCheck{Runs: 9, Differences: 0} },
		LogDropped: func() uint64 { return 3 },
		Seed:       func() (origin, fingerprint string) { return "file", "0badf00d" },
	}
}

func server(t *testing.T, address string, g *statustest.Gateway) *Server {
	t.Helper()
	return NewServer(Config{
		Address: address, Registry: NewRegistry(g, extras()), Log: slog.New(slog.DiscardHandler),
		Retry: time.Millisecond, NotReady: func() []string { return g.StatusView.NotReady }, Progress: progressOf(g),
	})
}

// start runs a server on a free port of the loopback and waits until it listens.
func start(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		if c := s.Condition(); c.Detail != "stopped" {
			t.Errorf("after the end: %+v", c)
		}
	})
	await(t, "the server to listen", func() bool { return s.Addr() != nil })
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("waited 10 s for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func get(t *testing.T, s *Server, path string) (int, string) {
	t.Helper()
	return getWith(t, s, path, "")
}

func getWith(t *testing.T, s *Server, path, token string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("http://%s%s", s.Addr(), path), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// TestGolden holds the text of /metrics: names and labels are an interface. Left
// out are the process's own metrics, buckets (TestBuckets) and drop reasons that did
// not occur (TestEveryDropReason).
func TestGolden(t *testing.T) {
	g := statustest.New()
	g.StatusView.FlowLog = &status.FlowLogView{Written: 1000, Lost: 7}
	s := server(t, "127.0.0.1:0", g)
	start(t, s)
	code, body := get(t, s, "/metrics")
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	var kept strings.Builder
	for line := range strings.Lines(body) {
		ours := strings.Contains(line, "sluice_") || strings.Contains(line, "kubeproxy_")
		if ours && !strings.Contains(line, "_bucket{") && !(strings.Contains(line, `{reason="`) &&
			strings.HasSuffix(line, " 0\n")) {
			kept.WriteString(line)
		}
	}
	got := kept.String()
	file := filepath.Join("testdata", "metrics.golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("-want +got (go test -update rewrites it):\n%s", diff)
	}
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes"} {
		if !strings.Contains(body, "\n"+name+" ") {
			t.Errorf("%s is missing", name)
		}
	}
}

// TestEveryDropReason: also those that did not occur, or rate() misses their first.
func TestEveryDropReason(t *testing.T) {
	s := server(t, "127.0.0.1:0", statustest.New())
	start(t, s)
	_, body := get(t, s, "/metrics")
	for d := reason.None + 1; d < reason.Count; d++ {
		for _, worker := range []string{"0", "1"} {
			if line := fmt.Sprintf("sluice_worker_dropped_packets_total{reason=%q,worker=%q} ", d,
				worker); !strings.Contains(body, line) {
				t.Errorf("no line %s", line)
			}
		}
	}
}

// TestNames: what promlint knows about good names, and what the collector
// describes is what it collects.
func TestNames(t *testing.T) {
	r, x := prometheus.NewPedanticRegistry(), extras()
	r.MustRegister(&collector{source: statustest.New(), extras: x, d: newDescs()}, x.KubeProxy)
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if p.Metric == "kubeproxy_sync_proxy_rules_no_local_endpoints_total" {
			continue // kube-proxy's name for a gauge
		}
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestEmptyGateway: before anything is read a scrape is small, not broken.
func TestEmptyGateway(t *testing.T) {
	s := server(t, "127.0.0.1:0", &statustest.Gateway{})
	start(t, s)
	if code, body := get(t, s, "/metrics"); code != http.StatusOK || !strings.Contains(body, "sluice_ready 0\n") {
		t.Errorf("%d %s", code, body)
	}
}

// TestDuplicateSeriesHidesNoOther: a series that is there twice hides no other.
func TestDuplicateSeriesHidesNoOther(t *testing.T) {
	g := statustest.New()
	g.ServiceList = append(g.ServiceList, g.ServiceList[0])
	s := server(t, "127.0.0.1:0", g)
	start(t, s)
	if code, body := get(t, s, "/metrics"); code != http.StatusOK || !strings.Contains(body, "sluice_ready 1\n") {
		t.Errorf("%d %s", code, body)
	}
}

// TestConditions: of several with one name the worst is shown.
func TestConditions(t *testing.T) {
	g := statustest.New()
	g.StatusView.Conditions = []status.ConditionView{
		{Name: "queues", Level: "warn"}, {Name: "queues", Level: "fail"}, {Name: "queues", Level: "warn"},
		{Name: "routes", Level: "warn"},
	}
	s := server(t, "127.0.0.1:0", g)
	start(t, s)
	_, body := get(t, s, "/metrics")
	for _, line := range []string{
		`sluice_condition_level{condition="queues"} 2`, `sluice_condition_level{condition="routes"} 1`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}

// progressOf returns Config.Progress for a sample gateway.
func progressOf(g *statustest.Gateway) func() ([]status.WorkerView, []string) {
	return func() ([]status.WorkerView, []string) { return g.StatsView.Workers, g.StatsView.Stalled }
}

// TestHealth: everybody who reaches the port may ask for health as often as he likes.
func TestHealth(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*statustest.Gateway)
		path   string
		code   int
		body   string
	}{
		{"alive", func(*statustest.Gateway) {}, "/healthz", 200, "ok\n"},
		{"ready", func(*statustest.Gateway) {}, "/readyz", 200, "ok\n"},
		{"not ready is alive", notReady, "/healthz", 200, "ok\n"},
		{"not ready", notReady, "/readyz", 503, "draining\nno table published yet\n"},
		{"no worker", func(g *statustest.Gateway) { g.StatsView.Workers = nil }, "/healthz", 503,
			"no worker runs yet\n"},
		{"worker stands still", func(g *statustest.Gateway) { g.StatsView.Workers[1].PulseNanos = 12345678901 },
			"/healthz", 503,
			"worker 1 has made no progress for 12.346s\n"},
		{"worker not started", func(g *statustest.Gateway) { g.StatsView.Workers[0].PulseNanos = -1 }, "/healthz", 503,
			"worker 0 has not started its loop\n"},
		{"unknown path", func(*statustest.Gateway) {}, "/", 404, "404 page not found\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := statustest.New()
			c.change(g)
			s := server(t, "127.0.0.1:0", g)
			start(t, s)
			if code, body := get(t, s, c.path); code != c.code || body != c.body {
				t.Errorf("got %d %q, want %d %q", code, body, c.code, c.body)
			}
		})
	}
}

// TestTokens: metrics and reasons are for those who send a token; health is for everybody.
func TestTokens(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	tokens, err := web.ReadTokens(file, log)
	if err != nil {
		t.Fatal(err)
	}
	g := statustest.New()
	notReady(g)
	s := NewServer(Config{Address: "127.0.0.1:0", Registry: NewRegistry(g, extras()), Log: log,
		Tokens: tokens, NotReady: func() []string { return g.StatusView.NotReady }, Progress: progressOf(g)})
	start(t, s)
	for _, c := range []struct {
		token, path string
		code        int
		body        string
	}{
		{"", "/metrics", 401, "a bearer token is needed\n"},
		{"wrong", "/metrics", 401, "a bearer token is needed\n"},
		{"secret", "/metrics", 200, "sluice_build_info"},
		{"", "/healthz", 200, "ok\n"},
		{"", "/readyz", 503, "no; requests with a token get the reason\n"},
		{"secret", "/readyz", 503, "draining\n"},
	} {
		if code, body := getWith(t, s, c.path, c.token); code != c.code || !strings.Contains(body, c.body) {
			t.Errorf("%s with token %q: %d %.100q, want %d %q", c.path, c.token, code, body, c.code, c.body)
		}
	}
}

func notReady(g *statustest.Gateway) {
	g.StatusView.Ready, g.StatusView.NotReady = false, []string{"draining", "no table published yet"}
}

// TestPortTaken: a taken port is a warning and a state, and is used once it is free.
func TestPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := server(t, l.Addr().String(), statustest.New())
	if c := s.Condition(); c.Level != "warn" || c.Detail != "not listening yet" {
		t.Errorf("before the start: %+v", c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	await(t, "the warning", func() bool { return strings.Contains(s.Condition().Detail, "address already in use") })
	if c := s.Condition(); c.Level != "warn" || c.Name != "metrics-listener" || c.Since.IsZero() || s.Addr() != nil {
		t.Errorf("while it is taken: %+v", c)
	}
	l.Close()
	await(t, "the port", func() bool { return s.Addr() != nil })
	if c := s.Condition(); c.Level != "ok" {
		t.Errorf("once it is free: %+v", c)
	}
	if code, _ := get(t, s, "/healthz"); code != 200 {
		t.Errorf("healthz: %d", code)
	}
	cancel()
	<-done
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("it still listens after the end")
	}
}

var _ Source = status.Gateway(nil)

// TestBackendSeriesAreOptional: seven series for each of 100,000 backends would make a scrape
// take seconds.
func TestBackendSeriesAreOptional(t *testing.T) {
	for _, asked := range []bool{false, true} {
		families, err := NewRegistry(statustest.New(), Extras{Backends: func() bool { return asked }}).Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range families {
			found = found || strings.HasPrefix(f.GetName(), "sluice_backend_")
		}
		if found != asked {
			t.Errorf("series of backends enabled: %v, found: %v", asked, found)
		}
	}
}
