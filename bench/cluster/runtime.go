package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sluice.dev/sluice/bench/apt"
)

// Runtime is what runs containers on a node, out of Debian's packages, none of which is installed.
type Runtime struct {
	Dir string // as if it were the root directory
}

// runtimePackages hold containerd, runc and the plugins that give pods their networks; nft, which kube-proxy
// runs; and the libraries of theirs that a small system may lack.
var runtimePackages = []string{
	"containerd", "runc", "libseccomp2", "containernetworking-plugins",
	"nftables", "libnftables1", "libnftnl11", "libmnl0", "libjansson4", "libxtables12", "libedit2", "libgmp10",
}

// FetchRuntime returns the cached runtime, or has apt download it, which takes half a minute and changes
// nothing of the system: the lists of packages are private, too. Progress is written to a stream.
func FetchRuntime(ctx context.Context, progress io.Writer) (*Runtime, error) {
	dir, err := runtimeDir()
	if err != nil {
		return nil, err
	}
	r := &Runtime{Dir: dir}
	if complete(dir) {
		return r, nil
	}
	unlock, err := lock(ctx, dir+".lock")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if complete(dir) { // by somebody else, meanwhile
		return r, nil
	}
	begin := time.Now()
	fmt.Fprintf(progress, "cluster: downloading containerd, runc, plugins and nft into %s, once\n", dir)
	next := dir + ".next"
	if err := errors.Join(os.RemoveAll(next), os.Mkdir(next, 0o755)); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	defer os.RemoveAll(next) // after the rename there is nothing of that name
	if err := download(ctx, next); err != nil {
		return nil, fmt.Errorf("cluster: fetch a runtime: %w", err)
	}
	if err := os.Rename(next, dir); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	fmt.Fprintf(progress, "cluster: downloaded in %s\n", time.Since(begin).Round(time.Second))
	return r, nil
}

// runtimeDir is named by the distribution's release and what is taken of it.
func runtimeDir() (string, error) {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", fmt.Errorf("cluster: which distribution is this: %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cluster: %w (set HOME or XDG_CACHE_HOME)", err)
	}
	sum := sha256.Sum256(append(release, strings.Join(runtimePackages, " ")...))
	parent := filepath.Join(cache, "sluice-cluster")
	return filepath.Join(parent, "runtime-"+hex.EncodeToString(sum[:8])), os.MkdirAll(parent, 0o755)
}

// download fetches the packages of the system's own release and unpacks them into a directory.
func download(ctx context.Context, into string) (err error) {
	from, err := apt.MachineSource("/etc/apt")
	if err != nil {
		return err
	}
	private := filepath.Join(into, "apt")
	defer func() { err = errors.Join(err, os.RemoveAll(private)) }()
	a, err := apt.New(ctx, private, from, from.Suites...)
	if err != nil {
		return err
	}
	if err := a.Download(ctx, runtimePackages...); err != nil {
		return err
	}
	return a.Unpack(ctx, into)
}

// Containerd, Ctr, Runc and Plugins are where they lie.
func (r *Runtime) Containerd() string { return filepath.Join(r.Dir, "usr/bin/containerd") }
func (r *Runtime) Ctr() string        { return filepath.Join(r.Dir, "usr/bin/ctr") }
func (r *Runtime) Runc() string       { return filepath.Join(r.Dir, "usr/sbin/runc") }
func (r *Runtime) Plugins() string    { return filepath.Join(r.Dir, "usr/lib/cni") }

// Env is the environment in which programs find those of the runtime, and its libraries, before the
// system's own.
func (r *Runtime) Env() []string {
	in := func(d string) string { return filepath.Join(r.Dir, d) }
	libraries, _ := filepath.Glob(in("usr/lib/*-linux-gnu")) // the pattern is well-formed
	more, _ := filepath.Glob(in("lib/*-linux-gnu"))
	return []string{
		"PATH=" + strings.Join([]string{in("usr/bin"), in("usr/sbin"), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}, ":"),
		"LD_LIBRARY_PATH=" + strings.Join(append(libraries, more...), ":"),
	}
}
