package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	gcr "github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"helm.sh/helm/v3/pkg/chart/loader"
	helm "helm.sh/helm/v3/pkg/registry"
)

const (
	tree        = "../../.." // relative to this package
	testVersion = "0.1.0"
)

var testTime = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func command(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	c := exec.Command(args[0], args[1:]...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}

// built compiles a program for Linux, as the tests of the image do.
func built(t *testing.T, arch, program string) string {
	t.Helper()
	return builtFor(t, "linux", arch, program)
}

func builtFor(t *testing.T, system, arch, program string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), program)
	command(t, tree, []string{"CGO_ENABLED=0", "GOOS=" + system, "GOARCH=" + arch},
		"go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, "./cmd/"+program)
	return out
}

// listed are the modules of a binary according to another reader: the go command.
func listed(t *testing.T, binary string) map[string]bool {
	t.Helper()
	urls := map[string]bool{}
	for line := range strings.Lines(command(t, ".", nil, "go", "version", "-m", binary)) {
		switch f := strings.Fields(line); {
		case strings.HasSuffix(f[0], ":"):
			urls["pkg:golang/std@"+strings.TrimPrefix(f[1], "go")] = true
		case f[0] == "dep":
			urls["pkg:golang/"+strings.ToLower(f[1])+"@"+strings.ReplaceAll(f[2], "+", "%2B")] = true
		}
	}
	return urls
}

func decoded(t *testing.T, path string) *cdx.BOM {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := new(cdx.BOM)
	if err := cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(b); err != nil {
		t.Fatal(err)
	}
	return b
}

// components are the components of a BOM by package URL; each has a name, a version, and a unique
// reference.
func components(t *testing.T, b *cdx.BOM) map[string]cdx.Component {
	t.Helper()
	all := map[string]cdx.Component{}
	for _, c := range *b.Components {
		if c.Name == "" || c.Version == "" || c.BOMRef == "" || all[c.PackageURL].Name != "" {
			t.Errorf("component %+v lacks something, or is there twice", c)
		}
		all[c.PackageURL] = c
	}
	for _, d := range *b.Dependencies {
		for _, ref := range *d.Dependencies {
			if _, ok := all[ref]; !ok {
				t.Errorf("%s depends on %s, which is no component", d.Ref, ref)
			}
		}
	}
	return all
}

// TestRelease makes a release twice from the same inputs, in two directories, and checks that the
// files are equal, that every module is in the SBOMs, and that sha256sum confirms the digests.
func TestRelease(t *testing.T) {
	binaries := map[string]string{"amd64": built(t, "amd64", name), "arm64": built(t, "arm64", name)}
	beside := map[string]string{"amd64": built(t, "amd64", "sluice-controller"),
		"arm64": built(t, "arm64", "sluice-controller")}
	var args []string
	for _, arch := range []string{"amd64", "arm64"} {
		args = append(args, arch+"="+binaries[arch]+","+beside[arch])
	}
	plugged := []string{"kubectl:darwin-arm64=" + builtFor(t, "darwin", "arm64", "kubectl-sluice"),
		"kubectl:windows-amd64=" + builtFor(t, "windows", "amd64", "kubectl-sluice")}
	man := filepath.Join(t.TempDir(), "man")
	command(t, "..", nil, "go", "run", "./man", "-time", strconv.FormatInt(testTime.Unix(), 10), man)
	dirs := [2]string{t.TempDir(), filepath.Join(t.TempDir(), "elsewhere")}
	for i, dir := range dirs {
		r := release{tree, dir, man, testVersion, "abc", testTime}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		command(t, "..", nil, append([]string{
			"go", "run", "./image", "-o", r.path("-image.tar"), "-version", testVersion, "-revision", "abc"},
			args...)...)
		if err := run(r, append(args[:2:2], plugged...), io.Discard); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			command(t, ".", nil, "diff", "-r", dirs[0], dir)
		}
	}
	dir := dirs[0]
	command(t, dir, nil, "sha256sum", "--strict", "-c", "SHA256SUMS")
	testPush(t, release{tree, dir, man, testVersion, "abc", testTime})
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(sums)) {
		names = append(names, strings.Fields(line)[1])
	}
	want := []string{
		"kubectl-sluice-0.1.0-darwin-arm64.tar.gz", "kubectl-sluice-0.1.0-windows-amd64.tar.gz",
		"sluice-0.1.0-image.cdx.json", "sluice-0.1.0-image.tar",
		"sluice-0.1.0-linux-amd64.cdx.json", "sluice-0.1.0-linux-amd64.tar.gz",
		"sluice-0.1.0-linux-arm64.cdx.json", "sluice-0.1.0-linux-arm64.tar.gz", "sluice-0.1.0.tgz",
	}
	if !slices.Equal(names, want) {
		t.Errorf("files %q, want %q", names, want)
	}

	r := release{dir: dir, version: testVersion}
	both := map[string]bool{}
	for arch, binary := range binaries {
		b := decoded(t, r.path("-linux-"+arch+".cdx.json"))
		want := listed(t, binary)
		maps.Copy(both, want)
		maps.Copy(both, listed(t, beside[arch]))
		got := components(t, b)
		if len(want) < 30 || len(got) != len(want) {
			t.Errorf("%s: %d components, and %d modules", arch, len(got), len(want))
		}
		for url := range want {
			if got[url].Name == "" {
				t.Errorf("%s: no component %s", arch, url)
			}
		}
		content, err := os.ReadFile(binary)
		if err != nil {
			t.Fatal(err)
		}
		c := b.Metadata.Component
		if (*c.Hashes)[0] != (*hash(content))[0] || b.Metadata.Timestamp != "2026-11-23T12:00:00Z" ||
			c.PackageURL != "pkg:golang/sluice.dev/sluice@v0.1.0?goarch="+arch+"&goos=linux" ||
			len(*b.Dependencies) != 1 || len(*(*b.Dependencies)[0].Dependencies) != len(want) {
			t.Errorf("%s: %+v of %s, %d dependencies", arch, c, b.Metadata.Timestamp, len(*b.Dependencies))
		}
		archived := contents(t, r.path("-linux-"+arch+".tar.gz"))
		if !bytes.Equal(archived[name], content) || len(archived) < 30 || len(archived["LICENSE"]) == 0 ||
			len(archived["man/man1/sluice-flows.1"]) == 0 || archived["man/man1/kubectl-sluice.1"] != nil ||
			!bytes.Contains(archived["THIRD_PARTY_LICENSES"], []byte("\ngithub.com/cilium/ebpf v")) {
			t.Errorf("%s: the archive holds %d files, or another binary", arch, len(archived))
		}
	}
	archived := contents(t, filepath.Join(dir, "kubectl-sluice-0.1.0-darwin-arm64.tar.gz"))
	if len(archived) != 4 || len(archived["man/man1/kubectl-sluice.1"]) == 0 {
		t.Errorf("the plugin's archive holds %q", slices.Sorted(maps.Keys(archived)))
	}
	b := decoded(t, r.path("-image.cdx.json"))
	if got := components(t, b); len(got) != len(both)+4 { // and two programs per architecture
		t.Errorf("image: %d components, and %d modules", len(got), len(both))
	} else if c := b.Metadata.Component; c.Type != cdx.ComponentTypeContainer ||
		c.PackageURL != "pkg:oci/sluice@sha256:"+(*c.Hashes)[0].Value+"?tag=0.1.0" {
		t.Errorf("image: %+v", c)
	}
}

// contents are the files of an archive, all with the release's time and owned by root.
func contents(t *testing.T, path string) map[string][]byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if !z.ModTime.IsZero() || z.Name != "" {
		t.Errorf("%s: the stream is %q of %s", path, z.Name, z.ModTime)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		} else if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(testTime) || h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
			t.Errorf("%s: %s is of %s, %d:%d", path, h.Name, h.ModTime, h.Uid, h.Gid)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChartArchive: Helm reads the same chart from the archive as from the directory.
func TestChartArchive(t *testing.T) {
	const dir = tree + "/deploy/chart"
	out := filepath.Join(t.TempDir(), "sluice-0.1.0.tgz")
	if err := writeChart(out, dir, testTime); err != nil {
		t.Fatal(err)
	}
	got, err := loader.Load(out)
	if err != nil {
		t.Fatal(err)
	}
	want, err := loader.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got.Metadata.Version != testVersion || got.Validate() != nil || len(got.Raw) != len(want.Raw) {
		t.Fatalf("%+v, %d files, want %d", got.Metadata, len(got.Raw), len(want.Raw))
	}
	archived := contents(t, out)
	for _, f := range want.Raw {
		if !bytes.Equal(archived["sluice/"+f.Name], f.Data) {
			t.Errorf("%s differs", f.Name)
		}
	}
}

// TestModule: the package URLs of modules with special names.
func TestModule(t *testing.T) {
	for _, tt := range []struct {
		module *debug.Module
		want   string
	}{
		{&debug.Module{Path: "golang.org/x/sys", Version: "v0.49.0"}, "pkg:golang/golang.org/x/sys@v0.49.0"},
		{&debug.Module{Path: "helm.sh/helm/v3", Version: "v3.21.4"}, "pkg:golang/helm.sh/helm/v3@v3.21.4"},
		{&debug.Module{Path: "github.com/BurntSushi/toml", Version: "v1.6.0"},
			"pkg:golang/github.com/burntsushi/toml@v1.6.0"},
		{&debug.Module{Path: "a.b/c", Version: "v2.0.0+incompatible"}, "pkg:golang/a.b/c@v2.0.0%2Bincompatible"},
		{&debug.Module{Path: "a.b/c", Version: "v1.0.0", Replace: &debug.Module{Path: "a.b/fork", Version: "v1.0.1"}},
			"pkg:golang/a.b/fork@v1.0.1"},
	} {
		got, err := module(tt.module)
		if err != nil || got.PackageURL != tt.want {
			t.Errorf("%s %s: %s, %v, want %s", tt.module.Path, tt.module.Version, got.PackageURL, err, tt.want)
		}
	}
	local := &debug.Module{Path: "a.b/c", Version: "v1.0.0", Replace: &debug.Module{Path: "../c"}}
	if _, err := module(local); err == nil || !strings.Contains(err.Error(), "../c has no version") {
		t.Errorf("a directory: %v", err)
	}
}

// TestInOrder: the committed tree has the version of its chart, and no other.
func TestInOrder(t *testing.T) {
	c, err := loader.LoadDir(tree + "/deploy/chart")
	if err != nil {
		t.Fatal(err)
	}
	if err := inOrder(tree, c.Metadata.Version); err != nil {
		t.Error(err)
	}
	err = inOrder(tree, "9.9.9")
	for _, want := range []string{"Chart.yaml has version", "no heading `## 9.9.9 (YEAR-MONTH-DAY)`"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestRefused: an invalid release is rejected with a reason.
func TestRefused(t *testing.T) {
	for _, tt := range []struct{ name, arg, want string }{
		{"no architecture", "main.go", "name it as"},
		{"no file", "amd64=/nonexistent", "no such file"},
		{"no Go binary", "amd64=main.go", "main.go: "},
		{"no manual page", "kubectl:linux-amd64=" + must(os.Executable()), "has no manual page"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := release{tree, t.TempDir(), "", testVersion, "abc", testTime}
			if err := run(r, []string{tt.arg}, io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
	if _, err := newApplication("sparc", testVersion, must(os.ReadFile(must(os.Executable())))); err == nil ||
		!strings.Contains(err.Error(), "not for sparc") {
		t.Errorf("a binary of another architecture: %v", err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// testPush pushes a release to a registry in memory, twice, and pulls image and chart. Another
// image with the same version is rejected.
func testPush(t *testing.T, r release) {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	where := strings.TrimPrefix(server.URL, "http://") + "/somebody"
	for range 2 {
		var out strings.Builder
		if err := push(t.Context(), r, where, &out); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"image " + where + "/sluice:0.1.0@sha256:", "chart oci://" + where +
			"/charts/sluice:0.1.0@sha256:"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %q in %q", want, out.String())
			}
		}
	}
	to, err := gcr.NewTag(where + "/sluice:0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Index(to)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := pulled.IndexManifest(); err != nil || len(m.Manifests) != 2 {
		t.Errorf("the image has %+v, want two architectures: %v", m, err)
	}
	c, err := helm.NewClient(helm.ClientOptPlainHTTP(), helm.ClientOptWriter(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	chart, err := c.Pull(where + "/charts/sluice:0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	if want, err := os.ReadFile(r.path(".tgz")); err != nil || !bytes.Equal(chart.Chart.Data, want) {
		t.Errorf("the chart that was pulled has %d bytes, and the archive %d: %v", len(chart.Chart.Data), len(want),
			err)
	}
	if err := remote.WriteIndex(to, empty.Index); err != nil {
		t.Fatal(err)
	}
	if err := push(t.Context(), r, where, io.Discard); err == nil || !strings.Contains(err.Error(),
		"release another version") {
		t.Errorf("another image under a published version: %v", err)
	}
}
