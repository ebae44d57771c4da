package health

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/serve/status"
)

var epoch = time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)

// gateway is what a Proxy asks, with a clock that stands still.
type gateway struct {
	mu            sync.Mutex
	now, at       time.Time
	read, applied uint64
	failures      []Failure
	node          objects.NodeInfo
	answered      []string
}

func newGateway() *gateway {
	return &gateway{now: epoch, at: epoch.Add(-5 * time.Second), read: 7, applied: 7,
		node: objects.NodeInfo{Known: true}}
}

func (g *gateway) proxy(address string) *Proxy {
	lock := func(f func()) { g.mu.Lock(); defer g.mu.Unlock(); f() }
	return NewProxy(Config{
		Address: address, Log: slog.New(slog.DiscardHandler), Retry: 5 * time.Millisecond,
		Now:      func() (t time.Time) { lock(func() { t = g.now }); return t },
		Reached:  func() (r, a uint64, t time.Time) { lock(func() { r, a, t = g.read, g.applied, g.at }); return },
		DataPath: func() (f []Failure) { lock(func() { f = slices.Clone(g.failures) }); return f },
		Node:     func() (n objects.NodeInfo) { lock(func() { n = g.node }); return n },
		Answered: func(path string, code int) {
			lock(func() { g.answered = append(g.answered, fmt.Sprint(path, " ", code)) })
		},
	})
}

func (g *gateway) set(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

// start runs a Proxy on a free port of the loopback and waits until it listens.
func start(t *testing.T, p *Proxy) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	await(t, "the server to listen", func() bool { return p.server.Addr() != nil })
}

func ask(t *testing.T, p *Proxy, path string) got {
	t.Helper()
	g, err := request(http.MethodGet, fmt.Sprintf("http://%v%s", p.server.Addr(), path))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

const both = `"status":{"IPv4":{"lastUpdated":"2026-03-01T07:59:55Z","healthy":true},"IPv6":{"lastUpdated":"2026-03-01T07:59:55Z","healthy":true}}`

func TestAnswers(t *testing.T) {
	const now = `"currentTime":"2026-03-01T08:00:00Z"`
	const updatedNow, updated, never = `"lastUpdated":"2026-03-01T08:00:00Z",`, `"lastUpdated":"2026-03-01T07:59:55Z",`,
		`"lastUpdated":"0001-01-01T00:00:00Z",`
	stalled := Failure{Reason: "worker 1 does not move", Restart: true}
	closed := Failure{Reason: "interface eth0 is not open: it is gone"}
	for _, c := range []struct {
		name           string
		change         func(*gateway)
		healthz, livez int
		healthzBody    string // without lastUpdated and currentTime
		livezBody      string
		serving        bool
	}{
		{"all is well", func(*gateway) {}, 200, 200, `"nodeEligible":true,"healthy":true,` + both, `"healthy":true,` +
			both, true},
		{"a worker stands still", func(g *gateway) { g.failures = []Failure{stalled} }, 503, 503,
			`"nodeEligible":true,"healthy":false,` + both + `,"dataPath":["worker 1 does not move"]`,
			`"healthy":false,` + both + `,"dataPath":["worker 1 does not move"]`, false},
		{"an interface is closed, which no restart mends", func(g *gateway) { g.failures = []Failure{closed} }, 503,
			200,
			`"nodeEligible":true,"healthy":false,` + both + `,"dataPath":["interface eth0 is not open: it is gone"]`,
			`"healthy":true,` + both, false},
		{"two failures", func(g *gateway) { g.failures = []Failure{closed, stalled} }, 503, 503,
			`"nodeEligible":true,"healthy":false,` + both +
				`,"dataPath":["interface eth0 is not open: it is gone","worker 1 does not move"]`, `"healthy":false,` +
				both + `,"dataPath":["worker 1 does not move"]`, false},
		{"no table yet", func(g *gateway) {
			g.at, g.applied, g.failures = time.Time{}, 0,
				[]Failure{{Reason: "no table"}}
		}, 503, 200,
			`"nodeEligible":true,"healthy":false,"dataPath":["no table"]`, `"healthy":true`, false},
		{"the node is leaving", func(g *gateway) { g.node.DrainReason = "taint" }, 503, 200,
			`"nodeEligible":false,"healthy":true,` + both, `"healthy":true,` + both, true},
		{"the Node is unknown", func(g *gateway) { g.node = objects.NodeInfo{} }, 503, 200,
			`"nodeEligible":false,"healthy":true,` + both, `"healthy":true,` + both, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGateway()
			c.change(g)
			p := g.proxy("127.0.0.1:0")
			start(t, p)
			for _, q := range []struct {
				path, body string
				code       int
			}{{"/healthz", c.healthzBody, c.healthz}, {"/livez", c.livezBody, c.livez}} {
				last := updatedNow
				switch {
				case q.code == 503 && g.at.IsZero():
					last = never
				case q.code == 503:
					last = updated
				}
				got := ask(t, p, q.path)
				if want := "{" + last + now + "," + q.body + "}"; got.code != q.code || got.body != want {
					t.Errorf("%s: %d, want %d; body -want +got\n%s", q.path, got.code, q.code, cmp.Diff(want, got.body))
				}
				if got.header.Get("Content-Type") != "application/json" ||
					got.header.Get("X-Content-Type-Options") != "nosniff" {
					t.Errorf("%s: headers %v", q.path, got.header)
				}
			}
			if p.Serving() != c.serving {
				t.Errorf("a Service's port is told serviceProxyHealthy %t", !c.serving)
			}
			want := []string{fmt.Sprint("/healthz ", c.healthz), fmt.Sprint("/livez ", c.livez)}
			if diff := cmp.Diff(want, g.answered); diff != "" {
				t.Errorf("counted -want +got\n%s", diff)
			}
		})
	}
}

func TestOtherPaths(t *testing.T) {
	p := newGateway().proxy("127.0.0.1:0")
	start(t, p)
	if g := ask(t, p, "/"); g.code != 404 {
		t.Errorf("/: %d", g.code)
	}
	if g, err := request(http.MethodPost, fmt.Sprintf("http://%v/healthz", p.server.Addr())); err != nil ||
		g.code != 200 {
		t.Errorf("POST /healthz: %d %v", g.code, err)
	}
}

// TestNodeOptional: manifests need no Node object, and that is no reason to leave; one that is
// there and leaves is.
func TestNodeOptional(t *testing.T) {
	for _, c := range []struct {
		name string
		node objects.NodeInfo
		code int
		body string
		why  string // in the condition; empty is no condition
	}{
		{"no Node", objects.NodeInfo{}, 200, `"nodeEligible":true`, ""},
		{"a Node", objects.NodeInfo{Known: true}, 200, `"nodeEligible":true`, ""},
		{"a Node that is leaving", objects.NodeInfo{Known: true, DrainReason: "Node a has the taint b"}, 503,
			`"nodeEligible":false`, "Node a has the taint b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGateway()
			g.node = c.node
			p := g.proxy("127.0.0.1:0")
			p.config.NodeOptional = true
			start(t, p)
			if got := ask(t, p, "/healthz"); got.code != c.code || !strings.Contains(got.body, c.body) {
				t.Errorf("/healthz: %+v", got)
			}
			if got := ask(t, p, "/livez"); got.code != 200 {
				t.Errorf("/livez: %+v", got)
			}
			shown := slices.ContainsFunc(p.Conditions(), func(v status.ConditionView) bool {
				return v.Name == "node" &&
					strings.Contains(v.Detail, c.why)
			})
			if shown != (c.why != "") {
				t.Errorf("conditions %v", p.Conditions())
			}
		})
	}
}

// TestLateUpdate walks the clock: an update may wait for less than a minute; while
// updates come without end each has its own minute.
func TestLateUpdate(t *testing.T) {
	g := newGateway()
	p := g.proxy("")
	check := func(what string, want bool) {
		t.Helper()
		for _, path := range []string{healthz, livez} {
			w := httptest.NewRecorder()
			p.answer(w, path)
			var r reply
			if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
			if (w.Code == 200) != want || r.Healthy != want || r.Status["IPv4"].Healthy != want ||
				r.Status["IPv6"].Healthy != want {
				t.Errorf("%s: %s answers %d %s", what, path, w.Code, w.Body)
			}
		}
		if p.Serving() != want {
			t.Errorf("%s: Serving is %t", what, !want)
		}
		late := slices.ContainsFunc(p.Conditions(), func(c status.ConditionView) bool {
			return c.Name == "sync" &&
				c.Level == "fail"
		})
		if late == want {
			t.Errorf("%s: conditions %v", what, p.Conditions())
		}
	}
	after := func(d time.Duration) { g.set(func() { g.now = g.now.Add(d) }) }

	after(time.Hour)
	check("nothing happens for an hour", true)
	g.set(func() { g.read = 8 })
	check("an update is read", true)
	if !p.Queued().Equal(g.now) {
		t.Errorf("queued at %v", p.Queued())
	}
	after(59999 * time.Millisecond)
	check("it waits for almost a minute", true)
	after(time.Millisecond)
	check("for a minute", false)
	g.set(func() { g.read = 20 })
	check("others join it", false)
	g.set(func() { g.applied = 8 })
	check("it is applied, the others have just come", true)
	after(time.Minute)
	check("and are late in their turn", false)
	g.set(func() { g.applied = 20 })
	check("all is applied", true)
	if !p.Queued().IsZero() {
		t.Errorf("queued at %v", p.Queued())
	}
	for range 300 { // a busy cluster: always one on its way
		g.set(func() { g.applied = g.read; g.read++ })
		after(time.Second)
		check("one after the other", true)
	}
	g.set(func() { g.at, g.applied = time.Time{}, 0 })
	after(time.Hour)
	w := httptest.NewRecorder()
	if p.answer(w, livez); w.Code != 200 {
		t.Errorf("before the first table /livez fails, which leads to a restart: %d %s", w.Code, w.Body)
	}
}

// TestRunLooks: since when an update waits is known without anybody asking.
func TestRunLooks(t *testing.T) {
	g := newGateway()
	p := g.proxy("127.0.0.1:0")
	start(t, p)
	g.set(func() { g.read = 8 })
	await(t, "the update to be seen", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.waiting.is })
}

// TestAddressTaken: a warning, and the port is used once it is free.
func TestAddressTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := newGateway().proxy(l.Addr().String())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	condition := func() status.ConditionView { return p.Conditions()[0] }
	await(t, "the warning", func() bool { return strings.Contains(condition().Detail, "address already in use") })
	if c := condition(); c.Name != "health-listener" || c.Level != "warn" ||
		!strings.Contains(c.Detail, "health.address") {
		t.Errorf("%+v", c)
	}
	l.Close()
	await(t, "the port", func() bool { return p.server.Addr() != nil })
	if g := ask(t, p, "/livez"); g.code != 200 || condition().Level != "ok" {
		t.Errorf("%+v %+v", g, condition())
	}
	cancel()
	<-done
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("it still listens after the end")
	}
}

// TestNodeCondition: an operator sees why the answer is 503.
func TestNodeCondition(t *testing.T) {
	g := newGateway()
	p := g.proxy("")
	if list := p.Conditions(); len(list) != 0 {
		t.Errorf("%v", list)
	}
	g.set(func() { g.node.DrainReason = "Node a has the taint b" })
	if list := p.Conditions(); len(list) != 1 || list[0].Name != "node" || !strings.Contains(list[0].Detail,
		"Node a has the taint b") {
		t.Errorf("%v", list)
	}
}
