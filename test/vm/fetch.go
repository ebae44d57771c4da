package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"sluice.dev/sluice/test/bed/apt"
	"sluice.dev/sluice/test/bed/scratch"
)

// Kernels are the suites of Debian that kernels can be taken from, with their versions at the time
// of writing.
var Kernels = []string{
	"bookworm",           // 6.1
	"bookworm-backports", // 6.12
	"trixie-backports",   // 7.3
	"sid",                // 7.2
}

// QEMU is of bookworm-backports: that of bookworm, 7.2, has no igb.
var (
	toolSuites   = []string{"bookworm", "bookworm-backports"}
	toolPackages = []string{"qemu-system-x86", "kmod", "ethtool"}
)

// Cache is where kernels and QEMU are kept:
//
//	tools/                    QEMU, modprobe, ethtool and their libraries, as in a root of their own
//	user/                     QEMU for single programs of other processors
//	kernels/SUITE             the release of the kernel that was the newest of the suite: a symbolic link
//	kernels/RELEASE/          vmlinuz, and lib/modules as depmod leaves it
type Cache struct {
	Dir string
	Log io.Writer // what takes long is announced here
}

// UserCache is the cache of the user who runs this.
func UserCache(log io.Writer) (Cache, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return Cache{}, fmt.Errorf("where to keep kernels and QEMU: %w; set HOME or XDG_CACHE_HOME", err)
	}
	return Cache{Dir: filepath.Join(dir, "sluice", "vm"), Log: log}, nil
}

// Kernel is a kernel in the cache.
type Kernel struct {
	Suite   string
	Release string // what uname -r says
	Dir     string
}

// Image is the file to boot.
func (k Kernel) Image() string { return filepath.Join(k.Dir, "vmlinuz") }

// Modules is the directory of its modules, as /lib/modules/RELEASE.
func (k Kernel) Modules() string { return filepath.Join(k.Dir, "lib", "modules", k.Release) }

// Fetch makes sure that QEMU and the kernel of a suite are in the cache. With refresh it takes the
// newest kernel of the suite even if there is one already.
func (c Cache) Fetch(ctx context.Context, suite string, refresh bool) (Kernel, error) {
	if runtime.GOARCH != "amd64" {
		return Kernel{},
			fmt.Errorf("guests are of x86-64, and run programs of this machine, which is %s: use an x86-64 machine",
				runtime.GOARCH)
	}
	if !slices.Contains(Kernels, suite) {
		return Kernel{}, fmt.Errorf("no kernel %q: name one of %s", suite, strings.Join(Kernels, ", "))
	}
	if err := os.MkdirAll(filepath.Join(c.Dir, "kernels"), 0o755); err != nil {
		return Kernel{}, err
	}
	unlock, err := scratch.Lock(ctx, filepath.Join(c.Dir, "lock"))
	if err != nil {
		return Kernel{}, err
	}
	defer unlock()
	if err := c.fetchQEMU(ctx, c.tools(), 40, toolPackages...); err != nil {
		return Kernel{}, fmt.Errorf("fetch QEMU: %w", err)
	}
	if !refresh {
		if k, err := c.kernel(suite); err == nil {
			return k, nil
		}
	}
	if err := c.fetchKernel(ctx, suite); err != nil {
		return Kernel{}, fmt.Errorf("fetch the kernel of %s: %w", suite, err)
	}
	return c.kernel(suite)
}

// kernel is the kernel of a suite that is in the cache.
func (c Cache) kernel(suite string) (Kernel, error) {
	release, err := os.Readlink(filepath.Join(c.Dir, "kernels", suite))
	if err != nil {
		return Kernel{}, err
	}
	k := Kernel{Suite: suite, Release: release, Dir: filepath.Join(c.Dir, "kernels", release)}
	_, err = os.Stat(k.Image())
	return k, err
}

// tools is the directory that holds QEMU and modprobe.
func (c Cache) tools() string { return filepath.Join(c.Dir, "tools") }

// fetchQEMU unpacks packages of toolSuites and all that they depend on into a directory, once.
func (c Cache) fetchQEMU(ctx context.Context, into string, megabytes int, packages ...string) error {
	return scratch.Once(ctx, into, func(next string) error {
		return apt.Use(ctx, filepath.Join(next, "apt"), toolSuites, func(a *apt.Apt) error {
			fmt.Fprintf(c.Log, "fetching QEMU by apt: about %d MB, once\n", megabytes)
			if err := a.DownloadAll(ctx, toolSuites[len(toolSuites)-1], packages...); err != nil {
				return err
			}
			return a.Unpack(ctx, next)
		})
	})
}

// fetchKernel moves its result into place whole or not at all.
func (c Cache) fetchKernel(ctx context.Context, suite string) (err error) {
	dir, err := os.MkdirTemp(c.Dir, "fetch-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	into, release := filepath.Join(dir, "into"), ""
	err = apt.Use(ctx, filepath.Join(dir, "apt"), []string{suite}, func(a *apt.Apt) error {
		packages, err := kernelPackages(ctx, a)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.Log, "fetching %s of %s by apt: about 100 MB, once\n", packages[0], suite)
		if err := a.Download(ctx, packages...); err != nil {
			return err
		}
		root := filepath.Join(a.Dir, "root")
		if err := a.Unpack(ctx, root); err != nil {
			return err
		}
		if release, err = arrange(root, into); err != nil {
			return err
		}
		return c.depmod(ctx, into, release)
	})
	if err != nil {
		return err
	}
	place := filepath.Join(c.Dir, "kernels", release)
	if err := os.RemoveAll(place); err != nil {
		return err
	}
	if err := os.Rename(into, place); err != nil {
		return err
	}
	link := filepath.Join(c.Dir, "kernels", suite)
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(release, link)
}

// kernelPackages are the packages that make up the kernel that linux-image-amd64 stands for. Since
// Linux 7.3 Debian keeps image and modules apart.
func kernelPackages(ctx context.Context, a *apt.Apt) ([]string, error) {
	of, err := a.Depends(ctx, "linux-image-amd64")
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(of, func(name string) bool { return strings.HasPrefix(name, "linux-image-") })
	if at < 0 {
		return nil, fmt.Errorf("linux-image-amd64 depends on no linux-image, but on %v", of)
	}
	release := strings.TrimPrefix(of[at], "linux-image-")
	packages := []string{of[at]}
	more, err := a.Depends(ctx, of[at])
	if err != nil {
		return nil, err
	}
	for _, name := range more {
		if strings.HasSuffix(name, "-"+release) { // linux-base, linux-binary, linux-modules
			packages = append(packages, name)
		}
	}
	return packages, nil
}

// arrange takes image and modules out of unpacked packages, whose places changed between releases
// of Debian.
func arrange(root, into string) (release string, err error) {
	for _, pattern := range []string{"lib/modules/*", "usr/lib/modules/*"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return "", err
		}
		if len(found) != 1 {
			continue
		}
		release = filepath.Base(found[0])
		if err := os.MkdirAll(filepath.Join(into, "lib", "modules"), 0o755); err != nil {
			return "", err
		}
		if err := os.Rename(found[0], filepath.Join(into, "lib", "modules", release)); err != nil {
			return "", err
		}
		break
	}
	if release == "" {
		return "", fmt.Errorf("the packages have no modules in %s", root)
	}
	for _, image := range []string{
		filepath.Join(root, "boot", "vmlinuz-"+release), filepath.Join(into, "lib", "modules", release, "vmlinuz"),
		filepath.Join(root, "usr", "lib", "linux", "vmlinuz-"+release),
	} {
		if err := os.Rename(image, filepath.Join(into, "vmlinuz")); err == nil {
			return release, nil
		}
	}
	return "", fmt.Errorf("the packages have no image of %s in %s", release, root)
}

// depmod writes what modprobe looks modules up in. Debian does it when a kernel is installed.
func (c Cache) depmod(ctx context.Context, dir, release string) error {
	args := c.tool("bin/kmod", "depmod", "-b", dir, release)
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("depmod: %w: %s", err, out)
	}
	return nil
}

// tool is the command line of a program in tools, run by the loader and with the libraries that are
// there: those of the machine may be older, and need not be there. name is the program's argv[0].
func (c Cache) tool(path, name string, args ...string) []string {
	root := c.tools()
	return append([]string{
		filepath.Join(root, "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
		"--library-path", filepath.Join(root, "lib/x86_64-linux-gnu") + ":" +
			filepath.Join(root, "usr/lib/x86_64-linux-gnu"),
		"--argv0", name, filepath.Join(root, path),
	}, args...)
}
