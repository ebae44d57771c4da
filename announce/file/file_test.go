package file

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const pool = "apiVersion: sluice.dev/v1alpha1\nkind: AddressPool\nmetadata: {name: one}\n" +
	"spec: {addresses: [192.0.2.0/24]}\n"

// TestRejectedFile: a version of the file that is not used is a problem until the file is good, and
// the objects of the previous version stay.
func TestRejectedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "announce.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(pool)
	s, err := New(path, "gw", slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	look := func(what string, changed bool, problem string, objects int) {
		t.Helper()
		if got := s.look(); got != changed {
			t.Errorf("%s: changed %v, want %v", what, got, changed)
		}
		o, _ := s.Objects()
		if (len(o.Problems) == 1) != (problem != "") || len(o.Kinds) != objects {
			t.Fatalf("%s: %d objects, %+v", what, len(o.Kinds), o.Problems)
		}
		if problem != "" && (!strings.Contains(o.Problems[0].Note, problem) || o.Problems[0].About.Name != "gw") {
			t.Errorf("%s: %+v, want %q", what, o.Problems[0], problem)
		}
	}
	look("as read at the start", false, "", 1)
	write(pool + "x: y\n")
	write("x: [\n")
	look("not YAML", true, "its previous version stays in force: yaml: ", 1)
	look("not YAML again", false, "its previous version stays in force: yaml: ", 1)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	look("missing", true, "no such file", 1)
	write(pool)
	look("the same as before", true, "", 1)
	write(pool + "---\n" + strings.Replace(pool, "one", "two", 1))
	look("another pool", true, "", 2)
}
