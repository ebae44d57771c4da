package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"sluice.dev/sluice/test/bed/scratch"
)

// EnableVariable is the environment variable that tests which need the binaries ask
// for. They are not decided by whether the binaries happen to be cached: then the same
// command would test different things on two machines.
const EnableVariable = "SLUICE_CLUSTER"

// Enabled reports whether tests that need the binaries are wanted.
func Enabled() bool { return os.Getenv(EnableVariable) == "1" }

// Binaries are the programs of a control plane and of nodes.
type Binaries struct {
	Dir                             string
	Etcd, APIServer, KubeProxy      string // paths
	Controllers, Scheduler, Kubelet string
}

// version is of the kubernetes that go.mod in binaries requires. The linker writes it
// into the programs, as the release's own build does (hack/lib/version.sh).
const version = "v1.36.3"

const linkerFlags = "-s -w" +
	" -X k8s.io/component-base/version.gitVersion=" + version +
	" -X k8s.io/component-base/version.gitMajor=1" +
	" -X k8s.io/component-base/version.gitMinor=36"

// Set is programs that are built from one nested module of this tree.
type Set struct {
	Module   string // where it lies in the tree
	What     string // description of the programs, for people
	Programs []Program
}

// Program is a package and the file name of its binary.
type Program struct {
	Name, Path string
	// Test: the program is the package's tests, as `go test -c` builds them.
	Test bool
}

var controlPlane = Set{
	Module: "test/bed/cluster/binaries", What: "etcd and Kubernetes",
	Programs: []Program{
		{Name: "etcd", Path: "go.etcd.io/etcd/server/v3"},
		{Name: "kube-apiserver", Path: "k8s.io/kubernetes/cmd/kube-apiserver"},
		{Name: "kube-controller-manager", Path: "k8s.io/kubernetes/cmd/kube-controller-manager"},
		{Name: "kube-scheduler", Path: "k8s.io/kubernetes/cmd/kube-scheduler"},
		{Name: "kubelet", Path: "k8s.io/kubernetes/cmd/kubelet"},
		{Name: "kube-proxy", Path: "k8s.io/kubernetes/cmd/kube-proxy"},
	},
}

// Build returns the cached binaries, or builds them, which takes minutes and a few
// GiB in Go's own cache. Progress is written to a stream. Of several callers, in any
// processes, one builds and the others wait for it.
func Build(ctx context.Context, progress io.Writer) (*Binaries, error) {
	dir, err := BuildSet(ctx, progress, controlPlane)
	if err != nil {
		return nil, err
	}
	return binariesIn(dir), nil
}

// BuildSet is Build for other programs of the same release. It returns the directory that they are
// in.
func BuildSet(ctx context.Context, progress io.Writer, s Set) (dir string, err error) {
	source, err := ModuleDir(ctx, s.Module)
	if err != nil {
		return "", err
	}
	if dir, err = cacheDir(source); err != nil {
		return "", err
	}
	return dir, scratch.Once(ctx, dir, func(next string) error {
		begin := time.Now()
		fmt.Fprintf(progress, "cluster: building %s %s into %s: this takes minutes, once\n", s.What, version, dir)
		if err := buildAll(ctx, source, next, s.Programs); err != nil {
			return err
		}
		fmt.Fprintf(progress, "cluster: built in %s\n", time.Since(begin).Round(time.Second))
		return nil
	})
}

func binariesIn(dir string) *Binaries {
	in := func(name string) string { return filepath.Join(dir, name) }
	return &Binaries{
		Dir: dir, Etcd: in("etcd"), APIServer: in("kube-apiserver"), KubeProxy: in("kube-proxy"),
		Controllers: in("kube-controller-manager"), Scheduler: in("kube-scheduler"), Kubelet: in("kubelet"),
	}
}

// ModuleDir is where a nested module lies in the tree that the caller is in.
func ModuleDir(ctx context.Context, module string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sluice.dev/sluice").Output()
	if err != nil {
		return "", fmt.Errorf("cluster: find the source tree (run this inside of it): %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), filepath.FromSlash(module)), nil
}

// cacheDir is named by a hash of the build's inputs: Go version, architecture, flags and modules.
func cacheDir(source string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version(), runtime.GOARCH, linkerFlags)
	for _, name := range [...]string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return "", fmt.Errorf("cluster: %w", err)
		}
		sum.Write(text)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cluster: %w (set HOME or XDG_CACHE_HOME)", err)
	}
	return filepath.Join(cache, "sluice-cluster", hex.EncodeToString(sum.Sum(nil)[:8])), nil
}

// buildAll builds programs into a directory.
func buildAll(ctx context.Context, source, dir string, programs []Program) error {
	for _, p := range programs {
		command := []string{"build"}
		if p.Test {
			command = []string{"test", "-c", "-vet=off"} // vet would go through all that they depend on
		}
		c := exec.CommandContext(ctx, "go", append(command, "-trimpath", "-ldflags", linkerFlags, "-o",
			filepath.Join(dir, p.Name), p.Path)...)
		c.Dir = source
		c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("cluster: build %s: %w\n%s", p.Name, err, out)
		}
	}
	return nil
}
