package daemon

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/config"
)

// TestChangeBeforeWatch: a process loads the file when it starts and when it takes over, and
// watches it once it serves. A change in between is noticed; a file that has not changed is not
// loaded again.
func TestChangeBeforeWatch(t *testing.T) {
	for _, c := range []struct {
		name string
		load func(*Daemon)
	}{
		{"start", func(d *Daemon) {
			var err error
			if d.settings.inForce, d.settings.read, err = load(d.settings.file); err != nil {
				t.Fatal(err)
			}
		}},
		{"after a wait", func(d *Daemon) { d.settings.reload() }},
		{"reload", func(d *Daemon) { d.reload(t.Context()) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := slog.New(slog.DiscardHandler)
			s := &settings{log: log, level: new(slog.LevelVar), inForce: config.Default(),
				file: filepath.Join(t.TempDir(), "gateway.yaml")}
			s.inForce.Interfaces = []config.Interface{{Name: "eth0"}}
			d := &Daemon{log: log, settings: s, seed: seedState{settings: s}}
			text := "apiVersion: sluice.dev/v1alpha1\nkind: GatewayConfiguration\ninterfaces: [{name: eth0}]\n"
			if c.name == "reload" {
				text = "apiVersion: none\n" // a reload that changes nothing, which needs no control loop
			}
			write := func(text string) {
				if err := os.WriteFile(s.file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(text)
			c.load(d)
			before := s.view()

			ended, cancel := context.WithCancel(t.Context())
			cancel()
			d.watchConfig(ended, nil)
			if v := s.view(); v.Error != before.Error || !v.LoadedAt.Equal(before.LoadedAt) {
				t.Errorf("what is in force was loaded again: %+v, before %+v", v, before)
			}
			write("changed: true\n") // which is refused
			d.watchConfig(ended, nil)
			if v := s.view(); !strings.Contains(v.Error, "changed") {
				t.Errorf("the change was not noticed: %q", v.Error)
			}
		})
	}
}

// TestReloadBesideGroup: a file that is valid is refused if its live settings do not go with the
// group in force, whose list of gateways changes by a restart alone. Otherwise a change of the list
// is pending, by the name of the gateway.
func TestReloadBesideGroup(t *testing.T) {
	const head = "apiVersion: sluice.dev/v1alpha1\nkind: GatewayConfiguration\ninterfaces: [{name: eth0}]\n"
	const tls = "  tls: {certFile: /a, keyFile: /b, caFile: /c}\n"
	members := func(last string) string {
		return "group:\n  members:\n" +
			"  - {name: gw-a, address: 192.0.2.1:9473, sources: [198.51.100.1, 198.51.100.2]}\n" +
			"  - {name: gw-b, address: 192.0.2.2:9473, sources: [198.51.100.3, " + last + "]}\n" + tls
	}
	pool := func(address string) string {
		return "addressPools: [{name: public, addresses: [" + address + "]}]\n"
	}
	for _, c := range []struct {
		name, next string
		refused    string
		pending    string
		pools      int // in force
	}{
		{"an address moves from the group to a pool", members("198.51.100.5") + pool("198.51.100.4/32"),
			"group.members[1].sources[1]: is 198.51.100.4 of addressPools[0]", "", 0},
		{"another one is in a pool", members("198.51.100.5") + pool("198.51.100.9/32"), "",
			"group.members[gw-b]: {Name:gw-b Address:192.0.2.2:9473 Sources:[198.51.100.3 198.51.100.4]} stays until " +
				"the daemon restarts; the file says {Name:gw-b Address:192.0.2.2:9473 Sources:[198.51.100.3 " +
				"198.51.100.5]}", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &settings{log: slog.New(slog.DiscardHandler), level: new(slog.LevelVar),
				file: filepath.Join(t.TempDir(), "gateway.yaml")}
			var err error
			if s.inForce, err = config.Parse([]byte(head + members("198.51.100.4"))); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.file, []byte(head+c.next), 0o600); err != nil {
				t.Fatal(err)
			}
			s.reload()
			v := s.view()
			if got := strings.Join(v.NeedRestart, "; "); got != c.pending {
				t.Errorf("pending is %q, want %q", got, c.pending)
			}
			if (v.Error != "") != (c.refused != "") || !strings.Contains(v.Error, c.refused) {
				t.Errorf("error %q, want %q", v.Error, c.refused)
			}
			if n := len(s.config().AddressPools); n != c.pools {
				t.Errorf("%d pools are in force, want %d", n, c.pools)
			}
		})
	}
}
