package licenses

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const tree = "../../.."

func build(t *testing.T, arch string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sluice")
	c := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path, "./cmd/sluice")
	c.Dir, c.Env = tree, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// TestEveryModule: the file contains the text of each module that the go command lists for the
// binary, as in the module cache, and the text of code forked into a module.
func TestEveryModule(t *testing.T) {
	path := build(t, "amd64")
	binary, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := Of(tree, binary)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Of(tree, binary)
	if err != nil || !bytes.Equal(file, again) {
		t.Errorf("not the same twice: %v", err)
	}
	listed, err := exec.Command("go", "version", "-m", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(listed)) {
		f := strings.Fields(line)
		if f[0] != "dep" {
			continue
		}
		n++
		c := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", f[1])
		c.Dir = tree
		dir, err := c.Output()
		if err != nil {
			t.Fatal(err)
		}
		texts, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "[Ll][Ii][Cc][Ee][Nn][Ss][Ee]*"))
		if err != nil || len(texts) == 0 {
			t.Fatalf("%s: no licence in %s, %v", f[1], dir, err)
		}
		for _, path := range texts {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(file, bytes.TrimSpace(text)) {
				t.Errorf("%s: the text of %s is not in it", f[1], path)
			}
			line := "\n" + f[1] + " " + f[2] + ": " + filepath.Base(path) + "\n"
			if !strings.Contains(string(file), line) {
				t.Errorf("no line %q", line)
			}
		}
	}
	if n < 30 {
		t.Errorf("%d modules in the binary", n)
	}
	for _, want := range []string{"\nGo go1.", "k8s.io/client-go v", ": third_party/forked/httpcache/LICENSE\n",
		"github.com/prometheus/client_golang v", ": NOTICE\n"} {
		if !strings.Contains(string(file), want) {
			t.Errorf("no %q in it", want)
		}
	}
	t.Logf("%d modules, %d bytes", n, len(file))
}

// TestWithout: a module without a text, or with an empty one, is an error that names it; so is a
// module with only a notice, or with a licence for only a part.
func TestWithout(t *testing.T) {
	for _, tt := range []struct {
		name, file, text string
		ok               bool
	}{
		{"LICENSE", "LICENSE", "terms", true}, {"another name", "COPYING.txt", "terms", true},
		{"British", "Licence.md", "terms", true}, {"none", "README", "terms", false},
		{"empty", "LICENSE", " \n", false},
		{"notice alone", "NOTICE", "terms", false}, {"source", "license.go", "package x", false},
		{"of a part", "part/LICENSE", "terms", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, tt.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			file, err := write([]module{{"example.org/m", "v1.2.3", dir}})
			entry := "example.org/m v1.2.3: " + tt.file + "\n\nterms\n"
			if tt.ok && (err != nil || !strings.Contains(string(file), entry)) {
				t.Errorf("%v: %s", err, file)
			}
			if !tt.ok && (err == nil || !strings.Contains(err.Error(), "example.org/m v1.2.3 has no licence text")) {
				t.Errorf("%v: %s", err, file)
			}
		})
	}
	if _, err := write([]module{{"example.org/m", "v1.2.3", ""}}); err == nil ||
		!strings.Contains(err.Error(), "example.org/m v1.2.3") {
		t.Errorf("not in the module cache: %v", err)
	}
	if _, err := standardLibrary(tree, "go1.2"); err == nil || !strings.Contains(err.Error(), "go1.2") {
		t.Errorf("another Go: %v", err)
	}
}

// TestOnce: a text that several modules share is written once, below all of them.
func TestOnce(t *testing.T) {
	var modules []module
	for _, path := range []string{"example.org/a", "example.org/b"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "LICENSE"), []byte("terms\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		modules = append(modules, module{path, "v1.0.0", dir})
	}
	file, err := write(modules)
	if err != nil || strings.Count(string(file), "terms") != 1 ||
		!strings.Contains(string(file), "\nexample.org/a v1.0.0: LICENSE\nexample.org/b v1.0.0: LICENSE\n\nterms\n") {
		t.Errorf("%v: %s", err, file)
	}
}
