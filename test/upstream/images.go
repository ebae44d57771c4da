package upstream

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sluice.dev/sluice/test/bed/cluster/nodes"
)

// Images as the cases name them (test/utils/image/manifest.go of the release that is built; a run
// holds them against `e2e.test --list-images`).
const (
	agnhostName = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"
	busyboxName = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"
	issueName   = "registry.k8s.io/e2e-test-images/regression-issue-74839:1.4"
)

// wget takes what cases give it, "-q -O - -T SECONDS URL", and is curl: Debian's busybox 1.35
// crashes in its wget where there is no more than this.
const wget = `#!/bin/sh
limit=
while [ $# -gt 1 ]; do
	case $1 in
	-T) limit="--connect-timeout $2 --max-time $2"; shift 2 ;;
	-O) shift 2 ;;
	*) shift ;;
	esac
done
exec curl -s -S -f -g $limit "$1"
`

// Images makes the images that the cases use: the programs are built from the modules of the
// release, the tools are Debian's, unpacked into a directory.
func Images(p *Programs, packages string) ([]*nodes.Image, error) {
	tools, err := tools(packages)
	if err != nil {
		return nil, err
	}
	agnhost, err := os.ReadFile(p.Agnhost)
	if err != nil {
		return nil, err
	}
	issue, err := os.ReadFile(p.Issue)
	if err != nil {
		return nil, err
	}
	with := tools.clone()
	with.Names = []string{agnhostName}
	with.Files["/agnhost"] = agnhost
	with.Links["/agnhost-2"] = "agnhost"
	with.Entrypoint, with.Cmd = []string{"/agnhost"}, []string{"pause"}
	tools.Names, tools.Cmd = []string{busyboxName}, []string{"sh"}
	return []*nodes.Image{&with.Image, &tools.Image, {
		Names: []string{issueName}, Entrypoint: []string{"/regression-issue-74839"},
		Files: map[string][]byte{"/regression-issue-74839": issue},
	}}, nil
}

type image struct{ nodes.Image }

func (i *image) clone() *image {
	c := &image{nodes.Image{Files: map[string][]byte{}, Links: map[string]string{}}}
	for name, content := range i.Files {
		c.Files[name] = content
	}
	for name, target := range i.Links {
		c.Links[name] = target
	}
	return c
}

// applets are the programs that cases use and that busybox is.
var applets = strings.Fields("cat date dd echo env false grep head hostname id ip ls mkdir nslookup ping printf ps " +
	"rm sed " +
	"seq sleep sort tail test timeout touch tr true uname uniq vi wc")

// tools is an image of the packages: programs in /bin, libraries where they are looked for.
func tools(packages string) (*image, error) {
	i := &image{nodes.Image{Files: map[string][]byte{
		"/bin/wget":          []byte(wget),
		"/etc/passwd":        []byte("root:x:0:0:root:/:/bin/sh\n"),
		"/etc/group":         []byte("root:x:0:\n"),
		"/etc/nsswitch.conf": []byte("hosts: files dns\n"),
		"/tmp/.keep":         nil, "/uploads/.keep": nil, // netexec takes uploads
	}, Links: map[string]string{}}}
	for name, from := range map[string]string{
		"/bin/busybox": "bin/busybox", "/bin/sh": "bin/dash", "/bin/curl": "usr/bin/curl", "/bin/nc": "bin/nc.openbsd",
	} {
		content, err := os.ReadFile(filepath.Join(packages, from))
		if err != nil {
			return nil, fmt.Errorf("upstream: what the packages hold: %w", err)
		}
		i.Files[name] = content
	}
	for _, name := range applets {
		i.Links["/bin/"+name] = "busybox"
	}
	for _, dir := range [...]string{"lib", "lib64", "usr/lib"} {
		if err := i.libraries(packages, dir); err != nil {
			return nil, err
		}
	}
	return i, nil
}

// libraries adds the shared libraries under a directory of the packages.
func (i *image) libraries(packages, dir string) error {
	return filepath.WalkDir(filepath.Join(packages, dir), func(file string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == "gconv" { // character sets
				return fs.SkipDir
			}
			return nil
		}
		if !strings.Contains(d.Name(), ".so") {
			return nil
		}
		name, err := filepath.Rel(packages, file)
		if err != nil {
			return err
		}
		name = path.Join("/", filepath.ToSlash(name))
		if d.Type()&fs.ModeSymlink != 0 {
			i.Links[name], err = os.Readlink(file)
			return err
		}
		i.Files[name], err = os.ReadFile(file)
		return err
	})
}
