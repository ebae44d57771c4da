// Command release makes the parts of a release other than binaries and image: an archive of each
// binary, the chart's archive, an SBOM of each binary and of the image, and SHA256SUMS.
//
//	go run ./release -check -version 0.1.0
//	go run ./release -dir ../../dist -version 0.1.0 -revision 1a2b3c -time 1795461955 -man ../../bin/man \
//		amd64=bin/amd64/sluice,bin/amd64/sluice-controller kubectl:darwin-arm64=bin/darwin-arm64/kubectl-sluice
//	go run ./release -dir ../../dist -version 0.1.0 -time 1795461955 -push REGISTRY
//
// The directory must already contain the image, as sluice-VERSION-image.tar. The same inputs give
// the same bytes: every time in an archive or SBOM is the commit's time, given with -time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/chart/loader"

	"sluice.dev/sluice/deploy/tools/licenses"
)

// name is the name of the program, the chart and the image.
const name = "sluice"

func main() {
	dir := flag.String("dir", "", "directory of the release")
	version := flag.String("version", "", "version, without v")
	revision := flag.String("revision", "", "commit")
	seconds := flag.Int64("time", 0, "time of the commit, in seconds since the epoch")
	man := flag.String("man", "", "directory with the manual pages of the programs")
	tree := flag.String("tree", "../..", "root of the repository")
	check := flag.Bool("check", false, "write nothing; fail if the tree has another version")
	to := flag.String("push", "", "registry to which to push image and chart of -dir; makes nothing")
	flag.Parse()
	err := inOrder(*tree, *version)
	r := release{*tree, *dir, *man, *version, *revision, time.Unix(*seconds, 0).UTC()}
	switch {
	case err != nil || *check:
	case *to != "":
		err = push(context.Background(), r, *to, os.Stdout)
	default:
		err = run(r, flag.Args(), os.Stdout)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// release holds the inputs, version and time that all parts share.
type release struct {
	tree, dir, man, version, revision string
	time                              time.Time
}

// path names a file of the release.
func (r *release) path(suffix string) string {
	return filepath.Join(r.dir, name+"-"+r.version+suffix)
}

// inOrder fails unless chart and CHANGELOG have the version, so that no archive contains another
// version than its name.
func inOrder(tree, version string) error {
	c, err := loader.LoadDir(filepath.Join(tree, "deploy/chart"))
	if err != nil {
		return err
	}
	var errs []error
	if m := c.Metadata; m.Version != version || m.AppVersion != version {
		errs = append(errs, fmt.Errorf("deploy/chart/Chart.yaml has version %s and appVersion %s, and VERSION is %q: "+
			"set both and run `make -C deploy chart`, or release VERSION=%s", m.Version, m.AppVersion, version, m.Version))
	}
	text, err := os.ReadFile(filepath.Join(tree, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	heading := regexp.MustCompile(`(?m)^## ` + regexp.QuoteMeta(version) + ` \(\d{4}-\d{2}-\d{2}\)$`)
	if !heading.Match(text) {
		errs = append(errs,
			fmt.Errorf("CHANGELOG.md has no heading `## %s (YEAR-MONTH-DAY)`: add the changes of the version", version))
	}
	return errors.Join(errs...)
}

// plugin is the prefix of arguments that name a plugin for kubectl, and of the archives' names.
const plugin = "kubectl"

// runPlugins writes an archive of each plugin for kubectl, named by system and processor, and
// returns the other arguments.
func runPlugins(r *release, license []byte, args []string) (rest []string, err error) {
	for _, arg := range args {
		plugged, ok := strings.CutPrefix(arg, plugin+":")
		system, path, named := strings.Cut(plugged, "=")
		switch {
		case !ok:
			rest = append(rest, arg)
			continue
		case !named:
			return nil, fmt.Errorf("%q is no plugin, name it as %s:darwin-arm64=PATH", arg, plugin)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		to := filepath.Join(r.dir, plugin+"-"+name+"-"+r.version+"-"+system+".tar.gz")
		if err := r.archive(to, license, path, filepath.Base(path), content); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

// archive writes an archive of a binary, which was read from path, its manual pages and its
// licences.
func (r *release) archive(to string, license []byte, path, as string, content []byte) error {
	others, err := licenses.Of(r.tree, content)
	if err != nil {
		return fmt.Errorf("%s: licences: %w", path, err)
	}
	files := []file{{"LICENSE", 0o644, license}, {licenses.FileName, 0o644, others}, {as, 0o755, content}}
	pages, err := r.pages(strings.TrimSuffix(as, ".exe"))
	if err != nil {
		return err
	}
	return writeArchive(to, r.time, append(files, pages...))
}

// pages reads the manual pages of a program and of its commands.
func (r *release) pages(program string) (list []file, err error) {
	for _, pattern := range []string{program + ".1", program + "-*.1"} {
		found, err := filepath.Glob(filepath.Join(r.man, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			content, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			list = append(list, file{"man/man1/" + filepath.Base(path), 0o644, content})
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no manual page %s.1: `make release` writes them", r.man, program)
	}
	return list, nil
}

// run writes the files made from the binaries, given as for the image, and from the image into the
// directory of the release. An archive contains the first binary, which runs without Kubernetes.
func run(r release, args []string, out io.Writer) error {
	license, err := os.ReadFile(filepath.Join(r.tree, "LICENSE"))
	if err != nil {
		return err
	}
	if args, err = runPlugins(&r, license, args); err != nil {
		return err
	}
	for _, arg := range args {
		arch, path, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q is no binary, name it as amd64=bin/amd64/sluice", arg)
		}
		path, _, _ = strings.Cut(path, ",")
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		a, err := newApplication(arch, r.version, content)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		suffix := "-linux-" + arch
		if err := errors.Join(
			r.archive(r.path(suffix+".tar.gz"), license, path, name, content),
			writeBOM(r.path(suffix+".cdx.json"), binaryBOM(&r, a)),
		); err != nil {
			return err
		}
	}
	i, err := readImage(r.path("-image.tar"), r.version)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if err := errors.Join(
		writeBOM(r.path("-image.cdx.json"), imageBOM(&r, i)),
		writeChart(r.path(".tgz"), filepath.Join(r.tree, "deploy/chart"), r.time),
	); err != nil {
		return err
	}
	return writeSums(r.dir, out)
}
