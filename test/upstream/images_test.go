//go:build root

package upstream

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sluice.dev/sluice/test/bed/cluster"
)

// The tools run in an image that has nothing else: each library is there, and each name.
func TestTools(t *testing.T) {
	if !cluster.Enabled() {
		t.Skip("downloads packages: " + cluster.EnableVariable + "=1")
	}
	packages, err := cluster.FetchPackages(t.Context(), os.Stderr, "the tools of test images", imagePackages...)
	if err != nil {
		t.Fatal(err)
	}
	i, err := tools(packages)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	at := func(name string) string {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	size := 0
	for name, content := range i.Files {
		size += len(content)
		if err := os.WriteFile(at(name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range i.Links {
		if err := os.Symlink(target, at(name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d files, %d links, %d KiB", len(i.Files), len(i.Links), size>>10)
	script := "set -e; curl --version; echo; nc -h 2>&1 || true; for a in " + strings.Join(applets, " ") +
		"; do command -v $a; done; " +
		"curl -s --connect-timeout 1 http://127.0.0.1:1/ || echo curl says $?; wget -q -O - -T 1 http://127.0.0.1:1 " +
		"2>&1 || true; wget -T 1 -qO- 127.0.0.1:2 2>&1 || true"
	c := exec.Command("/bin/sh", "-c", script)
	c.Dir, c.Env = "/", []string{"PATH=/bin"}
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"libcurl/", "OpenBSD netcat", "curl says 7", "connect to 127.0.0.1 port 1", "connect to 127.0.0.1 port 2",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
