package paired

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
)

// TestFind: a file that is not an older build of the command is rejected with a remedy; an older
// build is found, also by its directory, with its version.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	sluice, err := launch.Build(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(sluice)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string, content []byte, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	go_, err := os.Executable() // built by Go, but not a command of this project
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, path, command, want string }{
		{"the file", sluice, "sluice", ""},
		{"its directory", dir, "sluice", ""},
		{"another name", file("sluice-150c1ef", text, 0o755), "sluice", ""},
		{"nothing there", filepath.Join(dir, "none"), "sluice", "there is no such file: run `make build`"},
		{"below a file", filepath.Join(sluice, "none"), "sluice", "not a directory"},
		{"empty directory", empty, "sluice", "there is no sluice in this directory"},
		{"no file", "/dev/null", "sluice", "is not a file"},
		{"no program", file("text", []byte("sluice"), 0o644), "sluice", "is no program of this project"},
		{"not executable", file("plain", text, 0o644), "sluice", "cannot be executed"},
		{"a script", file("script", []byte("#!/bin/sh\necho sluice version 1\n"), 0o755), "sluice",
			"is no program of this project"},
		{"another Go program", go_, "sluice", "and sluice.dev/sluice/cmd/sluice is to be compared"},
		{"the other command", sluice, "sluice-bench",
			"is sluice.dev/sluice/cmd/sluice, and sluice.dev/sluice/cmd/sluice-bench is to be compared"},
	} {
		b, err := Find(t.Context(), c.path, c.command)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want == "" && (!filepath.IsAbs(b.Path) || b.Version == "" || strings.Contains(b.Version, "version") ||
			b.Revision != status.Revision):
			t.Errorf("%s: %+v", c.name, b)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(),
			"--before "+c.path+": ")):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	for path, want := range map[string]bool{
		filepath.Join(dir, "sluice-150c1ef"): true, filepath.Join(dir, "script"): false,
	} {
		if same, err := Same(sluice, path); err != nil || same != want {
			t.Errorf("%s: same %t, %v", path, same, err)
		}
	}
}
