package health

import (
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"sluice.dev/sluice/control/compiler"
)

// TestIdleConnections: clients that hold connections open cannot make the daemon grow, nor keep
// load balancers from their answers.
func TestIdleConnections(t *testing.T) {
	p, port, other := newPorts(t), freePort(t), freePort(t)
	p.SetHealthChecks([]compiler.HealthCheck{
		{Namespace: "shop", Name: "api", Port: other, V4: true, Local4: 1},
		{Namespace: "shop", Name: "web", Port: port, V4: true, Local4: 1},
	})
	p.get(t, loop4, port)
	p.get(t, loop4, other)
	const idle = 3 * maxConnections
	before := runtime.NumGoroutine()
	for i := range idle {
		c, err := net.Dial("tcp4", netip.AddrPortFrom(loop4, []uint16{port, other}[i%2]).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if n := p.connections.Len(); n > maxConnections {
			t.Fatalf("%d connections are open at once, want at most %d", n, maxConnections)
		}
	}
	if g, err := request("GET", "http://"+netip.AddrPortFrom(loop4, port).String()); err != nil || g.code != 200 {
		t.Errorf("no answer beside idle connections: %v %v", g, err)
	}
	await(t, "the oldest to end", func() bool {
		return runtime.NumGoroutine()-before < maxConnections+
			maxConnections/2
	})
}

// TestListenersAreBounded: what is above the bound is a problem of its Service.
func TestListenersAreBounded(t *testing.T) {
	p := NewPorts(PortsConfig{})
	want := wanted{addresses: []netip.Addr{loop4, loop6}}
	for i := range maxListeners/2 + 1 {
		want.checks = append(want.checks, compiler.HealthCheck{Namespace: "shop", Name: "web", Port: uint16(i + 1),
			V4: true, V6: true})
	}
	owners, failed := p.owners(&want)
	if len(owners) != maxListeners || len(failed) != 2 {
		t.Fatalf("%d are opened and %d refused, want %d and 2", len(owners), len(failed), maxListeners)
	}
	for at, f := range failed {
		if at.Port() != maxListeners/2+1 || !strings.Contains(f.message, "nodeAddresses") {
			t.Errorf("%v: %+v", at, f)
		}
	}
}

// TestCount: counts alone are taken in without another look at what is open; anything
// else is not.
func TestCount(t *testing.T) {
	port := compiler.HealthCheck{Namespace: "shop", Name: "web", Port: 30000, V4: true, Local4: 1}
	done := wanted{checks: []compiler.HealthCheck{port}, addresses: []netip.Addr{loop4}}
	for _, c := range []struct {
		name   string
		change func(*wanted)
		alone  bool
		local  int64
	}{
		{"nothing", func(*wanted) {}, true, 1},
		{"a count", func(w *wanted) { w.checks[0].Local4 = 7 }, true, 7},
		{"one of the other family", func(w *wanted) { w.checks[0].Local6 = 7 }, true, 1},
		{"another port", func(w *wanted) { w.checks[0].Port++ }, false, 1},
		{"another name", func(w *wanted) { w.checks[0].Name = "api" }, false, 1},
		{"another family", func(w *wanted) { w.checks[0].V6 = true }, false, 1},
		{"one more", func(w *wanted) { w.checks = append(w.checks, port) }, false, 1},
		{"none", func(w *wanted) { w.checks = nil }, false, 1},
		{"another address", func(w *wanted) { w.addresses = []netip.Addr{loop6} }, false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, l := NewPorts(PortsConfig{}), &listener{}
			l.local.Store(1)
			p.open[netip.AddrPortFrom(loop4, 30000)], p.done = l, done
			want := wanted{checks: []compiler.HealthCheck{port}, addresses: []netip.Addr{loop4}}
			c.change(&want)
			if alone := p.count(&want); alone != c.alone || l.local.Load() != c.local {
				t.Errorf("counts alone: %t, count %d; want %t and %d", alone, l.local.Load(), c.alone, c.local)
			}
		})
	}
}
