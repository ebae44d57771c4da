package drains

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/nat/header"
)

// TestSaved: what is saved is loaded; without drains no file is left.
func TestSaved(t *testing.T) {
	dir := t.TempDir()
	of := func(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }
	for _, list := range [][]compiler.Drain{
		nil,
		{{Addr: of("10.0.0.1")}, {Addr: of("10.0.0.1"), Port: 80}, {Addr: of("2001:db8::1")},
			{Addr: of("2001:db8::1"), Port: 65535}},
		{{Addr: of("10.0.0.2")}},
		nil,
	} {
		if err := Save(dir, list); err != nil {
			t.Fatal(err)
		}
		if got, err := Load(dir); err != nil || !slices.Equal(got, list) {
			t.Errorf("loaded %v, %v; saved %v", got, err, list)
		}
		files, err := os.ReadDir(dir)
		if err != nil || len(files) != min(len(list), 1) {
			t.Errorf("%d drains: files %v, %v", len(list), files, err)
		}
	}
}

// TestUnreadable: a file that is not ours is an error that names it.
func TestUnreadable(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "10.0.0.1", "another version": `{"version": 2, "drains": []}`,
		"an unknown field": `{"version": 1, "drains": [], "nodes": []}`,
		"a prefix":         `{"version": 1, "drains": ["10.0.0.0/8"]}`,
		"a name":           `{"version": 1, "drains": ["web"]}`,
		"empty":            "",
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, Name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if list, err := Load(dir); err == nil || !strings.Contains(err.Error(), path) || list != nil {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
}

// TestOthersMayWrite: drains that others could have written are not taken.
func TestOthersMayWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, Name)
	if err := os.WriteFile(path, []byte(`{"version": 1, "drains": ["10.0.0.1"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := Load(dir); err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	if err := os.Chmod(path, 0o602); err != nil {
		t.Fatal(err)
	}
	var refusal *trusted.Refusal
	if list, err := Load(dir); !errors.As(err, &refusal) || list != nil {
		t.Errorf("%v, %v", list, err)
	}
}
