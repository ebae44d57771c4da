package statefile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDevices(t *testing.T) {
	type values struct {
		MTU int `json:"mtu"`
	}
	path := filepath.Join(t.TempDir(), "devices.json")
	open := func() *Devices[values] {
		f, err := OpenDevices[values](path)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	at := func(f *Devices[values], name string, ifindex int) int {
		v, found := f.Get(name, ifindex)
		if !found && v != (values{}) {
			t.Errorf("%s %d is not found, and has %v", name, ifindex, v)
		}
		return v.MTU
	}
	f := open()
	for _, mtu := range []int{9000, 4000} {
		if err := f.Set("eth0", 3, values{mtu}); err != nil {
			t.Fatal(err)
		}
	}
	if f = open(); at(f, "eth0", 3) != 4000 || at(f, "eth0", 4) != 0 || at(f, "eth1", 3) != 0 {
		t.Errorf("%d, and %d of another device, %d of another name", at(f, "eth0", 3), at(f, "eth0", 4),
			at(f, "eth1", 3))
	}
	if f.boot = "another"; at(f, "eth0", 3) != 0 {
		t.Errorf("MTU %d of an index before the machine started", at(f, "eth0", 3))
	}
	if err := open().Forget("eth0"); err != nil || at(open(), "eth0", 3) != 0 {
		t.Errorf("forgotten: %d, %v", at(open(), "eth0", 3), err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("nothing is stored, and the file is there")
	}
	if err := open().Set("eth0", 3, values{1500}); err != nil {
		t.Fatal(err)
	}
	f = open()
	for range 2 {
		if err := f.Clear(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the file is still there")
	}
	if err := os.WriteFile(path, []byte(`{"eth0": {"boot": "x", "driver": "igb"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := OpenDevices[values](path); f == nil || err == nil || at(f, "eth0", 3) != 0 {
		t.Errorf("a file of another version: %v, %v", f, err)
	}
	f = nil
	if f.Set("eth0", 3, values{1}) != nil || f.Forget("eth0") != nil || f.Clear() != nil || at(f, "eth0", 3) != 0 {
		t.Error("a nil Devices stores something")
	}
}
