package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/maglev"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/gateway/seed"
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

// TestWaitComparesFiles: `sluice status --wait` compares the present configuration file and seed
// with the loaded ones, with and without notifications, also if their directories were replaced.
func TestWaitComparesFiles(t *testing.T) {
	write := func(t *testing.T, file, text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace := func(t *testing.T, dir string) {
		if err := errors.Join(os.Rename(dir, dir+".old"), os.CopyFS(dir, os.DirFS(dir+".old")),
			os.Chmod(dir, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	const loaded, edited = "apiVersion: none\n", "changed: true\n" // both are refused
	for _, c := range []struct {
		name   string
		change func(t *testing.T, file, seedFile string)
		want   string // in the error of the file
		seed   string // "": as before
	}{
		{"edited", func(t *testing.T, file, _ string) { write(t, file, edited) }, "changed", ""},
		{"edited in a new directory of that name", func(t *testing.T, file, _ string) {
			replace(t, filepath.Dir(file))
			write(t, file, edited)
		}, "changed", ""},
		{"removed", func(t *testing.T, file, _ string) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}, "no such file", ""},
		{"a link to itself", func(t *testing.T, file, _ string) {
			if err := errors.Join(os.Remove(file), os.Symlink(file, file)); err != nil {
				t.Fatal(err)
			}
		}, "too many levels", ""},
		{"seed in a new directory of that name", func(t *testing.T, _, seedFile string) {
			replace(t, filepath.Dir(seedFile))
			write(t, seedFile, strings.Repeat("b", seed.MinLength))
		}, "apiVersion", strings.Repeat("b", seed.MinLength)},
	} {
		for _, notified := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, notified %v", c.name, notified), func(t *testing.T) {
				log, dir := slog.New(slog.DiscardHandler), t.TempDir()
				s := &settings{log: log, level: new(slog.LevelVar), inForce: config.Default(),
					file: filepath.Join(dir, "etc", "gateway.yaml")}
				seedFile := filepath.Join(dir, "seed", "seed")
				for _, file := range []string{s.file, seedFile} {
					if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
						t.Fatal(err)
					}
				}
				s.inForce.StateDir, s.inForce.Maglev.SeedFile = dir, seedFile
				write(t, s.file, loaded)
				write(t, seedFile, strings.Repeat("a", seed.MinLength))
				d := &Daemon{log: log, settings: s, seed: seedState{settings: s}, open: make(chan struct{}),
					flows: flowState{adopted: make(chan struct{})}, compares: make(chan chan struct{}),
					loop: loop.New(loop.Config{Log: log, Tracker: tracker.New(),
						Compiler: compiler.New(compiler.Config{})})}
				close(d.open)
				close(d.flows.adopted)
				d.life.start(t.Context())
				defer d.life.end()
				none, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				if err := d.WaitApplied(none); err == nil || !strings.Contains(err.Error(), "configuration file") {
					t.Errorf("nothing compares: %v", err)
				}
				var notify *fsnotify.Watcher
				if notified {
					var err error
					if notify, err = fsnotify.NewWatcher(); err != nil {
						t.Fatal(err)
					}
					defer notify.Close()
				}
				d.life.spawn(func() { d.followConfig(d.life.ctx, nil, notify, nil) })
				wait := func(want, seed string) {
					t.Helper()
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					if err := d.waitConfig(ctx); err != nil {
						t.Fatal(err)
					}
					if v := s.view(); !strings.Contains(v.Error, want) {
						t.Errorf("the file's error is %q, want %q", v.Error, want)
					}
					if got := d.seed.current().Fingerprint; got != maglev.Fingerprint(seed) {
						t.Errorf("the seed's fingerprint is %s", got)
					}
				}
				before := strings.Repeat("a", seed.MinLength)
				wait("apiVersion", before)
				c.change(t, s.file, seedFile)
				wait(c.want, cmp.Or(c.seed, before))
			})
		}
	}
}

// TestConfigIsCompared: a file that is missing when an event comes is being replaced; at the next
// comparison without an event it is gone, and is loaded once it is back.
func TestConfigIsCompared(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	s := &settings{log: log, level: new(slog.LevelVar), inForce: config.Default(),
		file: filepath.Join(t.TempDir(), "gateway.yaml")}
	d := &Daemon{log: log, settings: s, seed: seedState{settings: s}}
	expect := func(want string) {
		t.Helper()
		if v := s.view(); !strings.Contains(v.Error, want) || (v.Error != "") != (want != "") {
			t.Errorf("error %q, want %q", v.Error, want)
		}
	}
	d.compareConfig(t.Context(), true)
	expect("")
	tick := make(chan time.Time)
	ended, cancel := context.WithCancel(t.Context())
	d.life.spawn(func() { d.followConfig(ended, nil, nil, tick) })
	tick <- time.Time{}
	tick <- time.Time{} // the comparison of the first has ended
	expect("no such file")
	if err := os.WriteFile(s.file, []byte("changed: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tick <- time.Time{}
	tick <- time.Time{}
	expect("changed")
	cancel()
	d.life.group.Wait()
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
