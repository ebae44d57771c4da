package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sluice.dev/sluice/test/bed/apt"
	"sluice.dev/sluice/test/bed/scratch"
)

// Runtime is what runs containers on a node, or what kube-proxy runs, out of Debian's packages,
// none of which is installed.
type Runtime struct {
	Dir string // as if it were the root directory
}

// runtimePackages hold containerd, runc and the plugins that give pods their networks; nft, which
// kube-proxy runs; and the libraries of theirs that a small system may lack.
var runtimePackages = []string{
	"containerd", "runc", "libseccomp2", "containernetworking-plugins",
	"nftables", "libnftables1", "libnftnl11", "libmnl0", "libjansson4", "libxtables12", "libedit2", "libgmp10",
}

// FetchRuntime returns the cached runtime, or has apt download it, which takes half a minute and
// changes nothing of the system: the lists of packages are private, too. Progress is written to a
// stream.
func FetchRuntime(ctx context.Context, progress io.Writer) (*Runtime, error) {
	dir, err := fetch(ctx, progress, "containerd, runc, plugins and nft", runtimePackages,
		func(a *apt.Apt, into string) error { return unpack(ctx, a, into, runtimePackages) })
	return &Runtime{Dir: dir}, err
}

// FetchPackages returns a directory with what Debian's packages and all that they depend on hold,
// as if it were the root directory; FetchRuntime documents how. The argument what names the
// packages for people.
func FetchPackages(ctx context.Context, progress io.Writer, what string, packages ...string) (dir string, err error) {
	return fetch(ctx, progress, what, packages, func(a *apt.Apt, into string) error {
		if err := a.DownloadAll(ctx, a.Suites[0], packages...); err != nil {
			return err
		}
		return a.Unpack(ctx, into)
	})
}

// ProgramOf returns the command line of a program that FetchPackages unpacked into a directory. It
// runs by the loader and with the libraries there.
func ProgramOf(dir, path string, args ...string) (name string, all []string) {
	lib := filepath.Join(dir, "lib/x86_64-linux-gnu")
	usr := filepath.Join(dir, "usr/lib")
	arch := filepath.Join(usr, "x86_64-linux-gnu")
	return filepath.Join(lib, "ld-linux-x86-64.so.2"), append([]string{
		"--library-path", strings.Join([]string{lib, arch, filepath.Join(arch, "frr"), usr}, ":"),
		"--argv0", filepath.Base(path), filepath.Join(dir, path),
	}, args...)
}

// unpack downloads packages without their dependencies and unpacks them into a directory.
func unpack(ctx context.Context, a *apt.Apt, into string, packages []string) error {
	if err := a.Download(ctx, packages...); err != nil {
		return err
	}
	return a.Unpack(ctx, into)
}

// fetch returns the directory of the user's cache that get fills, once, with packages of the
// system's own release.
func fetch(
	ctx context.Context, progress io.Writer, what string, packages []string, get func(a *apt.Apt, into string) error,
) (dir string, err error) {
	if dir, err = packagesDir(packages); err != nil {
		return "", err
	}
	return dir, scratch.Once(ctx, dir, func(next string) error {
		begin := time.Now()
		fmt.Fprintf(progress, "cluster: downloading %s into %s, once\n", what, dir)
		err := apt.Use(ctx, filepath.Join(next, "apt"), nil, func(a *apt.Apt) error { return get(a, next) })
		if err != nil {
			return fmt.Errorf("cluster: fetch %s: %w", what, err)
		}
		fmt.Fprintf(progress, "cluster: downloaded in %s\n", time.Since(begin).Round(time.Second))
		return nil
	})
}

// packagesDir is named by the distribution's release and the names of the packages.
func packagesDir(packages []string) (string, error) {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", fmt.Errorf("cluster: which distribution is this: %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cluster: %w (set HOME or XDG_CACHE_HOME)", err)
	}
	sum := sha256.Sum256(append(release, strings.Join(packages, " ")...))
	return filepath.Join(cache, "sluice-cluster", "runtime-"+hex.EncodeToString(sum[:8])), nil
}

// Containerd, Ctr, Runc and Plugins are where they lie.
func (r *Runtime) Containerd() string { return filepath.Join(r.Dir, "usr/bin/containerd") }
func (r *Runtime) Ctr() string        { return filepath.Join(r.Dir, "usr/bin/ctr") }
func (r *Runtime) Runc() string       { return filepath.Join(r.Dir, "usr/sbin/runc") }
func (r *Runtime) Plugins() string    { return filepath.Join(r.Dir, "usr/lib/cni") }

// has reports whether the runtime contains a program.
func (r *Runtime) has(program string) bool {
	for _, d := range [...]string{"usr/bin", "usr/sbin"} {
		if _, err := os.Stat(filepath.Join(r.Dir, d, program)); err == nil {
			return true
		}
	}
	return false
}

// Env is the environment in which programs find the runtime's programs and libraries before the
// system's own.
func (r *Runtime) Env() []string {
	in := func(d string) string { return filepath.Join(r.Dir, d) }
	libraries, _ := filepath.Glob(in("usr/lib/*-linux-gnu")) // the pattern is well-formed
	more, _ := filepath.Glob(in("lib/*-linux-gnu"))
	env := []string{
		"PATH=" + strings.Join([]string{in("usr/bin"), in("usr/sbin"), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin",
			"/usr/bin", "/sbin", "/bin", os.Getenv("PATH")}, ":"),
		"LD_LIBRARY_PATH=" + strings.Join(append(libraries, more...), ":"),
	}
	// iptables looks for its matches and targets here, or where they would be installed.
	for _, d := range libraries {
		extensions := filepath.Join(d, "xtables")
		if _, err := os.Stat(extensions); err == nil {
			env = append(env, "XTABLES_LIBDIR="+extensions)
		}
	}
	return env
}
