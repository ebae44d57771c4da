package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var at = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// pages writes all pages and returns them by name.
func pages(t *testing.T) map[string]string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "man1")
	if err := write(dir, at); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		list[e.Name()] = string(text)
	}
	return list
}

// plain removes the fonts of roff.
var plain = strings.NewReplacer(`\-`, "-", `\fB`, "", `\fP`, "")

// TestPages: each command has a page with its flags, and nothing in it depends on this machine.
func TestPages(t *testing.T) {
	list := pages(t)
	if !maps.Equal(list, pages(t)) {
		t.Error("the same pages differ when they are written again")
	}
	for name, wants := range map[string][]string{
		"sluice.1": {`.TH "SLUICE" "1" "Nov 2026" "Sluice" "Sluice"`, ".SH EXIT STATUS",
			"sluice-flows(1)"},
		"sluice-flows.1":                  {`--service`, "sluice flows --client 198.51.100.0/24 -o json"},
		"sluice-flows-delete.1":           {"--all"},
		"sluice-config-from-kube-proxy.1": {`--cpus=`},
		"kubectl-sluice.1":                {"--selector=", ".SH EXIT STATUS"},
	} {
		for _, want := range wants {
			if !strings.Contains(plain.Replace(list[name]), want) {
				t.Errorf("%s does not have %q:\n%s", name, want, list[name])
			}
		}
	}
	if n := len(list); n < 30 {
		t.Errorf("there are %d pages: %q", n, slices.Sorted(maps.Keys(list)))
	}
	if cpus := list["sluice-config-from-kube-proxy.1"]; !strings.Contains(cpus, "this host") {
		t.Errorf("the default of --cpus is a number of this host:\n%s", cpus)
	}
}
