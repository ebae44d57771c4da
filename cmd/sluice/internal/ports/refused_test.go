package ports

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRefusals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "modes.json")
	open := func() *refusals {
		r, err := openRefusals(path)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := open()
	for _, mtu := range []int{9000, 4000} {
		if err := r.set("eth0", 3, mtu); err != nil {
			t.Fatal(err)
		}
	}
	if r = open(); r.at("eth0", 3) != 4000 || r.at("eth0", 4) != 0 || r.at("eth1", 3) != 0 {
		t.Errorf("%d, and %d of another device, %d of another name", r.at("eth0", 3), r.at("eth0", 4), r.at("eth1", 3))
	}
	if r.boot = "another"; r.at("eth0", 3) != 0 {
		t.Errorf("MTU %d of an index before the machine started", r.at("eth0", 3))
	}
	if err := open().set("eth0", 3, 0); err != nil || open().at("eth0", 3) != 0 {
		t.Errorf("forgotten: %d, %v", open().at("eth0", 3), err)
	}
	if err := os.WriteFile(path, []byte(`{"eth0": {"boot": "x", "driver": "igb"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := openRefusals(path)
	if r == nil || err == nil || r.at("eth0", 3) != 0 {
		t.Errorf("a file of another version: %v, %v", r, err)
	}
	for range 2 {
		if err := r.remove(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the file is still there")
	}
}
