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
		{"after a wait", func(d *Daemon) { d.settings.reloadAfterWait() }},
		{"reload", func(d *Daemon) { d.reload(t.Context()) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := slog.New(slog.DiscardHandler)
			s := &settings{log: log, level: new(slog.LevelVar), inForce: config.Default(),
				file: filepath.Join(t.TempDir(), "gateway.yaml")}
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
