package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
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
			"interfaces: [{Name:eth0 Mode:auto ZeroCopy:auto Queues:all NAPI:{DeferHardIRQs:0 GROFlushTimeout:0s " +
				"Threaded:keep}}] stays until the daemon restarts; the file says [{Name:eth0 Mode:native " +
				"ZeroCopy:auto Queues:all NAPI:{DeferHardIRQs:0 GROFlushTimeout:0s Threaded:keep}}]"}},
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
