package vip

import (
	"context"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/reach"
	"sluice.dev/sluice/test/bed/topo"
)

// TestDrawing: each line of the drawing ends at its last branch.
func TestDrawing(t *testing.T) {
	host := func(name, address string) *topo.Host {
		return &topo.Host{Name: name, Interfaces: []topo.Interface{{Addr4: netip.MustParsePrefix(address + "/24")}}}
	}
	d := &demo{lab: &reach.Lab{Net: &topo.Net{
		Clients: []*topo.Host{host("client0", "10.70.0.10")}, Router: host("router", "10.70.0.1"),
		Gateways: []*topo.Host{host("gateway0", "10.71.0.1"), host("gateway1", "10.71.0.2")},
		Backends: []*topo.Host{host("backend0", "10.72.0.100"), host("backend1", "10.72.0.101"),
			host("backend2", "10.72.0.102")},
	}}}
	want := []string{
		"client0 10.70.0.10 ── router 10.70.0.1    ─┬─ gateway0 10.71.0.1  ┬─ backend0 10.72.0.100",
		"                                           └─ gateway1 10.71.0.2  ├─ backend1 10.72.0.101",
		"                                                                  └─ backend2 10.72.0.102",
	}
	if got := d.drawing(); !slices.Equal(got, want) {
		t.Errorf("drawn:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestUnderWay: the message names the failed step, and the gateway.
func TestUnderWay(t *testing.T) {
	r := &topo.Result{Errors: map[string]int64{"read: connection reset by peer": 1, "timeout": 2}}
	want := []string{"1 failed: it was under way on gateway1 (read: connection reset by peer)",
		"2 failed: they were under way on gateway1 (timeout)"}
	if got := underWay(r, "gateway1"); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestBoundFollowsTheMachine: if threads wake late, a bound is longer by that delay for each
// wake-up.
func TestBoundFollowsTheMachine(t *testing.T) {
	d := &demo{Config: Config{Patience: 2}}
	if got := d.within(time.Second, routeWakeUps); got != machine.Slower(2*time.Second) {
		t.Errorf("nothing was late: %v", got)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	go func() {
		for ctx.Err() == nil { // occupies the only processor, from which the scheduler removes it after 10 ms
		}
	}()
	d.late.Watch(ctx)
	_, late := d.late.Bound(0, 0)
	if got := d.within(time.Second, routeWakeUps); late == 0 || got != machine.Slower(2*time.Second)+routeWakeUps*late {
		t.Errorf("the latest was %v: %v", late, got)
	}
}
