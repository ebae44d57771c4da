package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// The programs in the test images.
const (
	gateway    = "./cmd/sluice"
	controller = "./cmd/sluice-controller"
	announcer  = "./cmd/sluice-announcer"
	static     = "./testdata/static"
	tree       = "../../.."
)

// compile builds a program as `make image` does, in a directory of its own.
func compile(t *testing.T, program, arch string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(program))
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", path}
	c := exec.Command("go", append(args, program)...)
	if program != static {
		c.Dir = tree
	}
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// Two builds give byte-identical images, with the same digest.
func TestReproducible(t *testing.T) {
	var files [2][]byte
	var digests [2]string
	for i := range files {
		out := filepath.Join(t.TempDir(), "image.tar")
		var err error
		if digests[i], err = run(tree, out, "v1", "abc", []string{"amd64=" + compile(t, gateway, "amd64"), "arm64=" +
			compile(t, static, "arm64")}); err != nil {
			t.Fatal(err)
		}
		if files[i], err = os.ReadFile(out); err != nil {
			t.Fatal(err)
		}
	}
	if digests[0] != digests[1] || !bytes.Equal(files[0], files[1]) {
		t.Errorf("digests %s and %s, files of %d and %d bytes", digests[0], digests[1], len(files[0]), len(files[1]))
	}
	t.Logf("%s, %d bytes", digests[0], len(files[0]))
}

// extract unpacks a tar of files.
func extract(t *testing.T, file, dir string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(epoch) {
			t.Errorf("%s is of %s", h.Name, h.ModTime)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// images reads a written file's images, by architecture.
func images(t *testing.T, file string) map[string]v1.Image {
	t.Helper()
	dir := t.TempDir()
	extract(t, file, dir)
	outer, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	top, err := outer.IndexManifest()
	if err != nil || len(top.Manifests) != 1 || top.Manifests[0].Annotations[refName] != "sluice:v1" {
		t.Fatalf("layout %+v, %v; want one image named sluice:v1", top, err)
	}
	// The chart's image is "sluice", and a kubelet requests its full name.
	if got, want := top.Manifests[0].Annotations[containerdName], "docker.io/library/sluice:v1"; got != want {
		t.Errorf("containerd imports it as %q, want %q", got, want)
	}
	index, err := outer.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Errorf("the index is not valid: %v", err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	byArch := map[string]v1.Image{}
	for _, d := range m.Manifests {
		image, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		byArch[d.Platform.Architecture] = image
	}
	return byArch
}

// The image contains only the programs and licences, and each program runs without other files.
func TestContents(t *testing.T) {
	out := filepath.Join(t.TempDir(), "image.tar")
	binary := compile(t, gateway, runtime.GOARCH)
	if _, err := run(tree, out, "v1", "abc", []string{runtime.GOARCH + "=" + binary + "," + compile(t, controller,
		runtime.GOARCH) + "," + compile(t, announcer, runtime.GOARCH)}); err != nil {
		t.Fatal(err)
	}
	image := images(t, out)[runtime.GOARCH]
	if image == nil {
		t.Fatalf("no image for %s", runtime.GOARCH)
	}
	c, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if !c.Created.Equal(time.Unix(0, 0)) || c.Config.Labels["org.opencontainers.image.revision"] != "abc" ||
		c.Config.StopSignal != "SIGTERM" {
		t.Errorf("configuration %+v", c)
	}
	root := t.TempDir()
	var names []string
	contents := mutate.Extract(image)
	defer contents.Close()
	for r := tar.NewReader(contents); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if h.Typeflag == tar.TypeReg {
			content, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(root, h.Name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
				os.WriteFile(path, content, os.FileMode(h.Mode))); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := "bin bin/sluice bin/sluice-controller bin/sluice-announcer licenses licenses/LICENSE " +
		"licenses/THIRD_PARTY_LICENSES"
	if got := strings.ReplaceAll(strings.Join(names, " "), "/ ", " "); got != want {
		t.Errorf("files %s, want %s", got, want)
	}
	if others, err := os.ReadFile(filepath.Join(root, "licenses/THIRD_PARTY_LICENSES")); err != nil ||
		!strings.Contains(string(others), "\ngithub.com/cilium/ebpf v") || // the gateway's
		!strings.Contains(string(others), "\ngo4.org/netipx v") || // the controller's
		!strings.Contains(string(others), "\ngithub.com/osrg/gobgp/v4 v") { // the announcer's
		t.Errorf("licences of others: %.500s, %v", others, err)
	}
	// In a root directory that contains only the image.
	if os.Geteuid() != 0 {
		t.Fatal("needs root: chroot")
	}
	for _, command := range [][]string{{c.Config.Entrypoint[0], "version"}, {"/bin/sluice-controller", "--version"},
		{"/bin/sluice-announcer", "--version"}} {
		cmd := exec.Command(command[0], command[1])
		cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", c.Config.Env, chroot(root)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%q: %v: %s", command, err, text)
		}
	}
}

// A program that would not run in an empty image is rejected.
func TestRefused(t *testing.T) {
	good := compile(t, static, "arm64")
	dynamic := filepath.Join(t.TempDir(), "dynamic")
	if sh, err := os.ReadFile("/bin/sh"); err != nil {
		t.Fatal(err)
	} else if err := os.WriteFile(dynamic, sh, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, arg, want string }{
		{"another machine", "amd64=" + good, "GOARCH=amd64"},
		{"no such architecture", "sparc=" + good, "choose amd64 or arm64"},
		{"a dynamic binary", runtime.GOARCH + "=" + dynamic, "CGO_ENABLED=0"},
		{"no binary", "amd64=main.go", "no ELF binary"},
		{"no file", "amd64=/nonexistent", "no such file"},
		{"no architecture", good, "name it as"},
		{"a second binary that is none", "arm64=" + good + ",main.go", "main.go: arm64: the file is no ELF binary"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "image.tar")
			_, err := run(tree, out, "v1", "", []string{tt.arg})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
			if _, err := os.Stat(out); err == nil {
				t.Error("a file was written")
			}
		})
	}
}
