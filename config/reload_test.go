package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func changed(t *testing.T, more string) (old, next *Configuration) {
	t.Helper()
	old, err := Parse([]byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	next, err = Parse([]byte(minimal + more))
	if err != nil {
		t.Fatal(err)
	}
	return old, next
}

func TestDiff(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"nothing", "workers: 0", nil},
		{"empty list", "workerCPUs: []", nil},
		{"live", "log: {level: debug}", []string{`log.level: from "info" to "debug"`}},
		{"live in a group", "tuning: {passAfter: 1m}", []string{"tuning.passAfter: from 30s to 1m"}},
		{"live list", "nodeAddresses: [10.0.0.0/8]", []string{"nodeAddresses: from [] to [10.0.0.0/8]"}},
		{"restart", "workers: 1", []string{"workers: 0 stays until the daemon restarts; the file says 1"}},
		{"restart, nested", "flows: {timeouts: {finWait: 4s}}",
			[]string{"flows.timeouts.finWait: 5m stays until the daemon restarts; the file says 4s"}},
		{"seed", "maglev: {seedFile: /run/seed}", []string{`maglev.seedFile: from "" to "/run/seed"`}},
		{"interface", "  mode: native", []string{
			"interfaces[eth0]: {Name:eth0 Mode:auto ZeroCopy:auto Queues:all NAPI:{DeferHardIRQs:0 " +
				"GROFlushTimeout:0s Threaded:keep}} stays until the daemon restarts; the file says {Name:eth0 " +
				"Mode:native ZeroCopy:auto Queues:all NAPI:{DeferHardIRQs:0 GROFlushTimeout:0s Threaded:keep}}"}},
		{"both", "snat: {ports: 1024-2048}\ndrain: {timeout: 0s}", []string{
			"snat.ports: 16384-29999 stays until the daemon restarts; the file says 1024-2048",
			"drain.timeout: from 10s to 0s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, next := changed(t, c.text)
			var got []string
			for _, change := range old.Diff(next) {
				got = append(got, change.String())
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestDiffOfGroup: a change of the list of gateways names the gateways that were added, removed or
// changed.
func TestDiffOfGroup(t *testing.T) {
	const b = "{Name:gw-b Address:192.0.2.2:9473 Sources:[198.51.100.3 198.51.100.4 2001:db8:f::3 2001:db8:f::4]}"
	const c = "{Name:gw-c Address:192.0.2.3:9473 Sources:[198.51.100.5 198.51.100.6 2001:db8:f::5 2001:db8:f::6]}"
	for _, tt := range []struct {
		name   string
		change func(g *Group)
		want   []string
	}{
		{"none", func(*Group) {}, nil},
		{"a gateway is removed", func(g *Group) { g.Members = g.Members[:2] },
			[]string{"group.members[gw-c]: is removed when the daemon restarts: " + c}},
		{"another gateway has its addresses", func(g *Group) { g.Members[2].Name = "gw-d" }, []string{
			"group.members[gw-d]: is added when the daemon restarts: " + strings.Replace(c, "gw-c", "gw-d", 1),
			"group.members[gw-c]: is removed when the daemon restarts: " + c}},
		{"a source address is another", func(g *Group) {
			g.Members[1].Sources[0] = netip.MustParseAddr("198.51.100.9")
		}, []string{"group.members[gw-b]: " + b + " stays until the daemon restarts; the file says " +
			strings.Replace(b, "198.51.100.3", "198.51.100.9", 1)}},
		{"another order", func(g *Group) { slices.Reverse(g.Members[1:]) }, []string{"group.members: [{"}},
		{"a certificate", func(g *Group) { g.TLS.CertFile = "/etc/new.crt" }, []string{
			`group.tls.certFile: "/etc/tls.crt" stays until the daemon restarts; the file says "/etc/new.crt"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old, next := Default(), Default()
			old.Group, next.Group = *sampleGroup(), *sampleGroup()
			tt.change(&next.Group)
			changes := old.Diff(next)
			if len(changes) != len(tt.want) {
				t.Fatalf("got %v, want %q", changes, tt.want)
			}
			for i, want := range tt.want {
				got := changes[i].String()
				if got != want && (tt.name != "another order" || !strings.HasPrefix(got, want)) {
					t.Errorf("got  %s\nwant %s", got, want)
				}
			}
			if !reflect.DeepEqual(old.Reload(next).Group, old.Group) {
				t.Error("a running daemon would use the new group")
			}
		})
	}
}

// TestReload: of a file in which every field changed, the live ones are taken over,
// the others stay, and neither side is written to.
func TestReload(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "everything.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	next, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	old := Default()
	merged := old.Reload(next)
	var live []string
	after := leaves(next)
	for i, l := range leaves(merged) {
		want := leaves(old)[i]
		if l.live {
			live, want = append(live, l.path), after[i]
		}
		if !reflect.DeepEqual(l.value, want.value) {
			t.Errorf("%s is %v after the reload, want %v", l.path, l.value, want.value)
		}
	}
	want := []string{
		"nodeAddresses", "proxy.clusterIPs", "proxy.clusterCIDRs", "proxy.masqueradeAll", "proxy.externalIPs",
		"proxy.deniedHostPorts", "proxy.strictSourceRanges", "proxy.scheduler", "proxy.namespaceShare",
		"limits.connectionsPerSource", "limits.newConnectionsPerSource", "limits.connections",
		"limits.newConnections", "endpointHealth.check", "endpointHealth.passive",
		"maglev.seedFile", "unservedVIPPort", "unknownConnection", "deny",
		"kubernetes.staleEndpointTimeout", "addressPools", "metrics.backends", "log.level", "drain.timeout",
		"drain.handOver", "tuning.passAfter",
	}
	if !slices.Equal(live, want) {
		t.Errorf("live fields are %v, want %v", live, want)
	}
	if !reflect.DeepEqual(old, Default()) {
		t.Error("Reload changed the old configuration")
	}
	for _, change := range merged.Diff(next) {
		if !change.Restart {
			t.Errorf("%s is live, but differs after the reload", change.Path)
		}
	}
}
