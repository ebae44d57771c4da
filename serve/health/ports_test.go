package health

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/objects"
)

var (
	loop4 = netip.MustParseAddr("127.0.0.1")
	loop6 = netip.MustParseAddr("::1")
)

// ports runs Ports on the loopback addresses.
type ports struct {
	*Ports
	serving atomic.Bool

	mu       sync.Mutex
	problems []objects.Problem
	reports  int
}

func newPorts(t *testing.T) *ports {
	t.Helper()
	p := &ports{}
	p.serving.Store(true)
	p.Ports = NewPorts(PortsConfig{
		Serving: p.serving.Load, NodeName: "gateway", Log: slog.New(slog.DiscardHandler), Retry: 5 * time.Millisecond,
		Report: func(list []objects.Problem) { p.mu.Lock(); p.problems = list; p.reports++; p.mu.Unlock() },
	})
	p.SetAddresses([]netip.Addr{loop4, loop6})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		if len(p.open) != 0 {
			t.Errorf("%d ports are open after the end", len(p.open))
		}
	})
	return p
}

// reported are the problems there are, and how often that changed.
func (p *ports) reported() ([]objects.Problem, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problems, p.reports
}

// freePort is a port that nobody listens on, neither at 127.0.0.1 nor at ::1.
func freePort(t *testing.T) uint16 {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		m, err := net.Listen("tcp6", fmt.Sprintf("[::1]:%d", port))
		l.Close()
		if err == nil {
			m.Close()
			return uint16(port)
		}
	}
	t.Fatal("no port is free in both families")
	return 0
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

var client = http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

type got struct {
	code   int
	header http.Header
	body   string
}

func request(method, url string) (g got, err error) {
	q, err := http.NewRequest(method, url, nil)
	if err != nil {
		return g, err
	}
	r, err := client.Do(q)
	if err != nil {
		return g, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return got{r.StatusCode, r.Header, string(body)}, err
}

func (p *ports) get(t *testing.T, a netip.Addr, port uint16) (g got) {
	t.Helper()
	await(t, fmt.Sprintf("an answer at %v port %d", a, port), func() (ok bool) {
		var err error
		g, err = request(http.MethodGet, fmt.Sprintf("http://%v/", netip.AddrPortFrom(a, port)))
		return err == nil
	})
	return g
}

func listens(a netip.Addr, port uint16) bool {
	c, err := net.Dial("tcp", netip.AddrPortFrom(a, port).String())
	if err == nil {
		c.Close()
	}
	return err == nil
}

// TestPortAnswers: code, headers and every byte of the body, by family.
func TestPortAnswers(t *testing.T) {
	const v4 = "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": " +
		"\"web\"\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %t\n}"
	for _, c := range []struct {
		name           string
		local4, local6 int
		serving        bool
		code4, code6   int
	}{
		{"endpoints of both families", 2, 1, true, 200, 200},
		{"of one", 3, 0, true, 200, 503},
		{"of the other", 0, 7, true, 503, 200},
		{"none", 0, 0, true, 503, 503},
		{"the proxy is not healthy", 2, 1, false, 503, 503},
		{"nothing is", 0, 0, false, 503, 503},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, port := newPorts(t), freePort(t)
			p.serving.Store(c.serving)
			p.SetHealthChecks([]compiler.HealthCheck{{Namespace: "shop", Name: "web", Port: port, V4: true, V6: true,
				Local4: c.local4, Local6: c.local6}})
			for _, f := range []struct {
				addr        netip.Addr
				local, code int
			}{{loop4, c.local4, c.code4}, {loop6, c.local6, c.code6}} {
				g := p.get(t, f.addr, port)
				if want := fmt.Sprintf(v4, f.local, c.serving); g.code != f.code || g.body != want {
					t.Errorf("%v: %d %q, want %d %q", f.addr, g.code, g.body, f.code, want)
				}
				for key, want := range map[string]string{
					"Content-Type": "application/json", "X-Content-Type-Options": "nosniff",
					"X-Load-Balancing-Endpoint-Weight": fmt.Sprint(f.local),
				} {
					if got := g.header.Get(key); got != want {
						t.Errorf("%v: %s is %q, want %q", f.addr, key, got, want)
					}
				}
			}
		})
	}
}

func TestAnyMethodAndPath(t *testing.T) {
	p, port := newPorts(t), freePort(t)
	p.SetHealthChecks([]compiler.HealthCheck{{Namespace: "shop", Name: "web", Port: port, V4: true, Local4: 1}})
	want := p.get(t, loop4, port)
	for _, method := range []string{"GET", "POST", "PUT", "DELETE", "OPTIONS", "PROPFIND"} {
		for _, path := range []string{"/", "/healthz", "/a/../b?c=d", "//"} {
			g, err := request(method, fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
			if err != nil || g.code != 200 || g.body != want.body {
				t.Errorf("%s %s: %d %q %v", method, path, g.code, g.body, err)
			}
		}
	}
}

// TestLifecycle: a port is there as long as its Service wants it, at the addresses
// there are, and tells the newest count.
func TestLifecycle(t *testing.T) {
	p, port, other := newPorts(t), freePort(t), freePort(t)
	web := compiler.HealthCheck{Namespace: "shop", Name: "web", Port: port, V4: true, Local4: 1}
	p.SetHealthChecks([]compiler.HealthCheck{web})
	p.get(t, loop4, port)
	if listens(loop6, port) {
		t.Error("a Service of IPv4 alone has a port at ::1")
	}
	web.Local4 = 5
	p.SetHealthChecks([]compiler.HealthCheck{web})
	await(t, "the new count", func() bool {
		return strings.Contains(p.get(t, loop4, port).body,
			`"localEndpoints": 5`)
	})

	web.V6 = true // the Service became dual-stack
	p.SetHealthChecks([]compiler.HealthCheck{web})
	await(t, "IPv6", func() bool { return listens(loop6, port) })

	p.SetAddresses([]netip.Addr{loop6})
	await(t, "the address to go", func() bool { return !listens(loop4, port) })
	if !listens(loop6, port) {
		t.Error("the other address went too")
	}
	p.SetAddresses([]netip.Addr{netip.IPv4Unspecified()})
	await(t, "all addresses of IPv4", func() bool { return listens(loop4, port) && !listens(loop6, port) })
	p.SetAddresses([]netip.Addr{loop4, loop6})

	moved := web
	moved.Port = other
	p.SetHealthChecks([]compiler.HealthCheck{moved})
	await(t, "the port to change", func() bool { return listens(loop4, other) && !listens(loop4, port) })

	// Another Service takes the port over.
	p.SetHealthChecks([]compiler.HealthCheck{{Namespace: "shop", Name: "api", Port: other, V4: true}})
	await(t, "the new owner", func() bool { return strings.Contains(p.get(t, loop4, other).body, `"name": "api"`) })

	p.SetHealthChecks(nil)
	await(t, "the port to close", func() bool { return !listens(loop4, other) })
	if problems, reports := p.reported(); reports != 0 {
		t.Errorf("there was nothing wrong: %v", problems)
	}
}

// TestPortTaken: a Problem in kube-proxy's words for the Service, nothing for others,
// and the port is used once it is free.
func TestPortTaken(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken, free := uint16(l.Addr().(*net.TCPAddr).Port), freePort(t)
	p := newPorts(t)
	p.SetHealthChecks([]compiler.HealthCheck{
		{Namespace: "shop", Name: "free", Port: free, V4: true, Local4: 1},
		{Namespace: "shop", Name: "web", Port: taken, V4: true, Local4: 1},
	})
	await(t, "the problem", func() bool { list, _ := p.reported(); return len(list) == 1 })
	p.get(t, loop4, free)
	problems, _ := p.reported()
	want := fmt.Sprintf("node gateway failed to start healthcheck \"shop/web\" on port %d: listen tcp4 127.0.0.1:%d: "+
		"bind: address already in use", taken, taken)
	q := problems[0]
	if q.Object != (objects.ObjectID{Kind: "Service", Namespace: "shop", Name: "web"}) ||
		q.Severity != objects.Warning ||
		q.Field != "spec.healthCheckNodePort" || q.Why() != "FailedToStartServiceHealthcheck" ||
		!strings.HasPrefix(q.Message, want+". ") {
		t.Errorf("%+v", q)
	}
	l.Close()
	await(t, "the problem to go", func() bool { list, _ := p.reported(); return len(list) == 0 })
	if g := p.get(t, loop4, taken); g.code != 200 {
		t.Errorf("%+v", g)
	}
	if _, reports := p.reported(); reports != 2 {
		t.Errorf("every attempt was told: %d reports, not one of the problem and one of its end", reports)
	}
}

// TestOnePortTwice: the first in order has it, and the second is told.
func TestOnePortTwice(t *testing.T) {
	p, port := newPorts(t), freePort(t)
	a := compiler.HealthCheck{Namespace: "shop", Name: "a", Port: port, V4: true, V6: true, Local4: 1, Local6: 1}
	b := a
	b.Name = "b"
	p.SetHealthChecks([]compiler.HealthCheck{a, b})
	await(t, "the problem", func() bool { list, _ := p.reported(); return len(list) > 0 })
	problems, _ := p.reported()
	if len(problems) != 1 || !strings.Contains(problems[0].Message, "the port belongs to Service shop/a") ||
		problems[0].Object.Name != "b" {
		t.Errorf("want one for shop/b, not one for each family: %v", problems)
	}
	if g := p.get(t, loop4, port); !strings.Contains(g.body, `"name": "a"`) {
		t.Errorf("%+v", g)
	}
}
