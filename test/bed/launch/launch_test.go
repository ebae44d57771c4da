package launch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/test/bed/topo"
)

func TestConfigurationIsValid(t *testing.T) {
	for _, tc := range []struct {
		name, options string
		drain         time.Duration
	}{
		{"nothing more", "", 100 * time.Millisecond},
		{"options", "flows: {ipv4: 65536, ipv6: 65536}\n", 100 * time.Millisecond},
		{"a drain of its own", "drain: {timeout: 7s}\n", 7 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g, err := New(Config{Host: &topo.Host{}, Interfaces: []string{"front0", "back0"}, Options: tc.options})
			if err != nil {
				t.Fatal(err)
			}
			c, err := config.Load(g.ConfigFile())
			if err != nil {
				t.Fatal(err)
			}
			if len(c.Interfaces) != 2 || time.Duration(c.Drain.Timeout) != tc.drain {
				t.Errorf("interfaces %v, drain %v", c.Interfaces, c.Drain.Timeout)
			}
			for _, path := range []string{c.Manifests.Directory, c.StateDir, c.BPFFS} {
				if !strings.HasPrefix(path, g.dir+"/") {
					t.Errorf("%s is outside of the gateway's directory", path)
				}
			}
			if c.StatusSocket() != g.Socket() {
				t.Errorf("the daemon's socket is %s, the gateway's %s", c.StatusSocket(), g.Socket())
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(g.dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the directory after Close: %v", err)
			}
		})
	}
}

// A name that the daemon reads must never hold half a file.
func TestWriteReplaces(t *testing.T) {
	g, err := New(Config{Host: &topo.Host{}})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for _, text := range []string{"first", "second, longer", "3"} {
		if err := g.Write("a.yaml", []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(g.Manifests(), "a.yaml")); err != nil || string(got) != text {
			t.Errorf("%q, %v", got, err)
		}
	}
	if entries, err := os.ReadDir(g.Manifests()); err != nil || len(entries) != 1 {
		t.Errorf("beside it: %v, %v", entries, err)
	}
}
