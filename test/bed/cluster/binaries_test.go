package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestVersions: the version that the linker writes into kubernetes is the one that is
// built, its parts are of the release, and etcd is the one that it requires.
func TestVersions(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("binaries", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\tk8s.io/kubernetes "+version+" ") {
		t.Errorf("binaries/go.mod does not require kubernetes %s", version)
	}
	parts := strings.Replace(version, "v1.", "v0.", 1)
	replaced := regexp.MustCompile(`(?m)^\t(k8s\.io/\S+) => (\S+) (\S+)$`).FindAllStringSubmatch(string(text), -1)
	if len(replaced) < 30 {
		t.Errorf("%d parts of kubernetes are replaced", len(replaced))
	}
	for _, r := range replaced {
		if r[1] != r[2] || r[3] != parts {
			t.Errorf("%s is replaced by %s %s, want its own %s", r[1], r[2], r[3], parts)
		}
	}
}

func TestCacheDirectoryFollowsTheModule(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	source := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(source, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]string{}
	for _, c := range [...]struct{ mod, sum string }{{"a", "b"}, {"a2", "b"}, {"a", "b2"}} {
		write("go.mod", c.mod)
		write("go.sum", c.sum)
		dir, err := cacheDir(source)
		if err != nil {
			t.Fatal(err)
		}
		if was, ok := seen[dir]; ok {
			t.Errorf("%v has the directory of %s", c, was)
		}
		seen[dir] = fmt.Sprint(c)
		if again, err := cacheDir(source); err != nil || again != dir {
			t.Errorf("%v has another directory the second time: %v", c, err)
		}
	}
}

// TestSweep: what a dead process left goes, what a living one has and what is not ours
// by its name stays.
func TestSweep(t *testing.T) {
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	parent := t.TempDir()
	gone := directoryPrefix + strconv.Itoa(dead.Process.Pid) + "-1"
	kept := []string{
		directoryPrefix + strconv.Itoa(os.Getpid()) + "-1", directoryPrefix + "x-1",
		"other-" + strconv.Itoa(dead.Process.Pid) + "-1",
	}
	for _, name := range append(kept, gone) {
		if err := os.MkdirAll(filepath.Join(parent, name, "inside"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := sweep(parent); err != nil {
		t.Fatal(err)
	}
	for _, name := range kept {
		if _, err := os.Stat(filepath.Join(parent, name)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(parent, gone)); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", gone, err)
	}
}
