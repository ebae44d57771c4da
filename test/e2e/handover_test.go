//go:build root

package e2e

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/topo"
)

const handsOver = "drain: {timeout: 100ms, handOver: true}\n"

// TestHandOver: SIGTERM ends no connection if the next process takes over; if the daemon is stopped
// for good, the node is as it was before.
func TestHandOver(t *testing.T) {
	const open = 200
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, options: handsOver})
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort),
		at(vip6, webPort)}, Flows: open, Interval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if n := flows.Broken(); n > 0 {
		t.Fatalf("%d of %d flows could not be opened", n, open)
	}
	var starts []time.Duration
	for round := range 3 {
		began := time.Now()
		l.handOver()
		ended := time.Since(began)
		if err := l.gate.Start(l.ctx); err != nil {
			t.Fatal(err)
		}
		all := time.Since(began)
		t.Logf("round %d: ended %v after SIGTERM, forwards again after %v", round, ended.Round(time.Millisecond),
			all.Round(time.Millisecond))
		starts = append(starts, l.startTime(all-ended))
		l.answered(flows, 5)
	}
	l.wantStartWithin(time.Second, starts)
	l.wantUnbroken(flows, open, "three times handed over")
	l.handOverNoMore()
}

// wantUnbroken ends established flows, none of which may have broken or missed an answer.
func (l *lab) wantUnbroken(flows *topo.Flows, open int, after string) {
	l.t.Helper()
	l.answeredAgain(flows)
	broken := flows.Broken()
	r := flows.Stop()
	l.t.Logf("%d established flows, %s: %d broken, %d answers", open, after, broken, r.Requests)
	if broken > 0 || r.Failed() > 0 {
		l.t.Errorf("flows broken: %v", r.Errors)
	}
}

// handOver ends the daemon, which must leave everything, and not wait for connections.
func (l *lab) handOver() {
	l.t.Helper()
	if err := l.gate.Stop(); err != nil {
		l.t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	left, err := l.gate.Leftovers()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, what := range []string{"file state", "program", "interface"} {
		if !strings.Contains(strings.Join(left, "\n"), what) {
			l.t.Errorf("no %s is left for the next process: %q", what, left)
		}
	}
}

// handOverNoMore changes the configuration under the running daemon: close finds nothing left then.
func (l *lab) handOverNoMore() {
	l.t.Helper()
	before, err := l.gate.Client.Status(l.ctx, false)
	if err != nil {
		l.t.Fatal(err)
	}
	if err := l.gate.WriteConfiguration(strings.Replace(l.gate.Configuration(), "handOver: true", "handOver: false",
		1)); err != nil {
		l.t.Fatal(err)
	}
	l.within("the configuration is taken over", func() bool {
		v, err := l.gate.Client.Status(l.ctx, false)
		return err == nil && v.Config.LoadedAt.After(before.Config.LoadedAt)
	})
}

// TestFlowTableResized: established connections outlive restarts with a larger and a smaller flow
// table; one that is too small does not come in force.
func TestFlowTableResized(t *testing.T) {
	t.Parallel()
	const open = 200
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2},
		options: "flows: {ipv4: 4096, ipv6: 4096}\n" + handsOver})
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort),
		at(vip6, webPort)}, Flows: open, Interval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	was := "ipv4: 4096, ipv6: 4096"
	for _, to := range []struct {
		sizes string
		room  uint64 // for IPv4 afterwards
		warns bool
	}{
		{"ipv4: 65536, ipv6: 8192", 65536, false},
		{"ipv4: 2048, ipv6: 2048", 2048, false},
		{"ipv4: 64, ipv6: 64", 2048, true},
	} {
		l.handOver()
		if err := l.gate.WriteConfiguration(strings.Replace(l.gate.Configuration(), was, to.sizes, 1)); err != nil {
			t.Fatal(err)
		}
		if err := l.gate.Start(l.ctx); err != nil {
			t.Fatal(err)
		}
		l.answered(flows, 5)
		l.wantRoom(to.sizes, to.room, to.warns)
	}
	r := flows.Stop()
	t.Logf("%d established flows, three times in a table of another size: 0 broken, %d answers", open, r.Requests)
	if r.Failed() > 0 {
		t.Errorf("flows broken: %v", r.Errors)
	}
	l.handOverNoMore()
}

// wantRoom compares the size of the table in force, and whether status warns of it.
func (l *lab) wantRoom(sizes string, room uint64, warns bool) {
	l.t.Helper()
	stats, err := l.gate.Client.Stats(l.ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	if got := stats.Flows[0].Capacity; got != room {
		l.t.Errorf("%s: room for %d IPv4 flows, want %d", sizes, got, room)
	}
	v, err := l.gate.Client.Status(l.ctx, false)
	if err != nil {
		l.t.Fatal(err)
	}
	warned := slices.ContainsFunc(v.Conditions, func(c status.ConditionView) bool { return c.Name == "flow-table" })
	if warned != warns {
		l.t.Errorf("%s: warned %v, want %v: %+v", sizes, warned, warns, v.Conditions)
	}
}

// TestIdleConnectionsCountAfterCrash: connections that send nothing count in their backends' loads
// after a crash, so an operator who drains a backend sees them.
func TestIdleConnectionsCountAfterCrash(t *testing.T) {
	t.Parallel()
	const open = 60
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}})
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort),
		at(vip6, webPort)}, Flows: open, Interval: 4 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	before, _ := l.connections()
	sum := int32(0)
	for _, n := range before {
		sum += n
	}
	if sum != open {
		t.Fatalf("%d connections before, want %d: %v", sum, open, before)
	}
	if err := l.gate.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatal(err)
	}
	after, packets := l.connections()
	t.Logf("connections by backend: %v", after)
	if !maps.Equal(after, before) {
		t.Errorf("connections by backend are %v after the restart, were %v", after, before)
	}
	if packets > open/2 { // one may have been under way
		t.Errorf("%d packets were translated meanwhile: the connections did not rest", packets)
	}
	if n := flows.Broken(); n > 0 {
		t.Errorf("%d of %d flows broke", n, open)
	}
	flows.Stop()
}

// connections are those that count for each backend, and how many packets the daemon translated.
func (l *lab) connections() (open map[string]int32, packets uint64) {
	l.t.Helper()
	list, err := l.gate.Client.Backends(l.ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	open = map[string]int32{}
	for _, b := range list {
		open[b.Service+" "+b.Address.String()] = b.Connections
		packets += b.Traffic.ToBackend + b.Traffic.ToClient
	}
	return open, packets
}
