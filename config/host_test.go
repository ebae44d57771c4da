package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckHost(t *testing.T) {
	dir, shared := t.TempDir(), t.TempDir()
	if err := os.Chmod(shared, 0o777|os.ModeSticky); err != nil { // as mount makes a tmpfs without a mode
		t.Fatal(err)
	}
	good := func() (*Configuration, Host) {
		c := Default()
		c.Interfaces = []Interface{{Name: "eth0"}}
		c.WorkerCPUs = []int{1}
		c.Manifests.Directory = dir
		return c, Host{Interfaces: []string{"lo", "eth0"}, CPUs: []int{0, 1}, Ephemeral: PortRange{32768, 60999}}
	}
	for _, tc := range []struct {
		name   string
		change func(*Configuration, *Host)
		want   string
	}{
		{"fits", func(*Configuration, *Host) {}, ""},
		{"interface missing", func(c *Configuration, _ *Host) { c.Interfaces[0].Name = "eth7" },
			"gw: interfaces[0].name: no interface eth7 in this network namespace, choose one of lo, eth0"},
		{"CPU not ours", func(c *Configuration, _ *Host) { c.WorkerCPUs = []int{5} },
			"gw: workerCPUs[0]: this process may not run on CPU 5, choose among 0,1"},
		{"ephemeral ports", func(_ *Configuration, h *Host) { h.Ephemeral.First = 20000 },
			"gw: snat.ports: is 16384-29999, but the kernel also assigns port 20000 of it"},
		{"reserved", func(_ *Configuration, h *Host) {
			h.Ephemeral.First = 20000
			h.Reserved = []PortRange{{20000, 25000}, {25001, 29999}}
		}, ""},
		{"reserved in part", func(_ *Configuration, h *Host) {
			h.Ephemeral.First = 20000
			h.Reserved = []PortRange{{20000, 25000}, {25002, 29999}}
		}, "gw: snat.ports: is 16384-29999, but the kernel also assigns port 25001 of it"},
		{"no manifests", func(c *Configuration, _ *Host) { c.Manifests.Directory = dir + "/none" },
			"gw: manifests.directory: " + dir + "/none is no directory, create it or choose another one"},
		{"manifests beside the API server", func(c *Configuration, _ *Host) {
			c.Manifests.Directory, c.Kubernetes.Enabled = dir+"/none", true
		}, "gw: manifests.directory: " + dir +
			`/none is no directory, create it, or write "" if Services come from the API server alone`},
		{"state that others may write", func(c *Configuration, _ *Host) {
			c.StateDir = shared
		}, "gw: stateDir: cannot be used: " + shared + " may be written by users other than its owner (mode 1777)"},
		{"state to be made", func(c *Configuration, _ *Host) { c.StateDir = dir + "/new" }, ""},
		{"API server alone", func(c *Configuration, _ *Host) {
			c.Manifests.Directory, c.Kubernetes.Enabled = "", true
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, h := good()
			tc.change(c, &h)
			err := c.CheckHost("gw", h)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.want) ||
				strings.Contains(err.Error(), "\n")):
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

func TestReadHost(t *testing.T) {
	h, err := ReadHost()
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Interfaces) == 0 || len(h.CPUs) == 0 || h.Ephemeral.First == 0 {
		t.Errorf("read %+v", h)
	}
}

func TestReadReserved(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ports")
	for text, want := range map[string]int{"\n": 0, "8080\n": 1, "8080,9000-9010\n": 2} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readReserved(file)
		if err != nil || len(got) != want {
			t.Errorf("%q: %v, %v, want %d ranges", text, got, err, want)
		}
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readReserved(file); err == nil {
		t.Error("nonsense was read")
	}
}

// TestInMemory: /dev/shm is a tmpfs on every Linux, /proc is none.
func TestInMemory(t *testing.T) {
	for path, want := range map[string]bool{
		"/dev/shm": true, "/dev/shm/sluice-not-there/nor-this": true, "/proc": false, "/proc/1/sluice-not-there": false,
	} {
		if got := InMemory(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}
