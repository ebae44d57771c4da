// Package licenses collects the licence texts of a binary: of Go's standard library and of each
// module in the binary's build info.
//
//	binary ──build info──▶ modules ──module cache, GOROOT──▶ texts ──▶ one file, each text once
//
// A module without a text is an error, so that no module is distributed without its licence.
package licenses

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// FileName is the name of the file distributed beside the binary.
const FileName = "THIRD_PARTY_LICENSES"

// module is a linked module, and the directory of its source.
type module struct {
	Path, Version, Dir string
}

func (m module) String() string { return strings.TrimSpace(m.Path + " " + m.Version) }

// Of returns the licence file for binaries built by the go command of a tree. The same binaries
// give the same bytes. It downloads modules that are not in the module cache, and checks them
// against the tree's go.sum.
func Of(tree string, binaries ...[]byte) ([]byte, error) {
	var modules []module // the standard library first
	for _, binary := range binaries {
		list, err := modulesOf(tree, binary)
		if err != nil {
			return nil, err
		}
		for _, m := range list {
			if !slices.Contains(modules, m) {
				modules = append(modules, m)
			}
		}
	}
	if err := download(tree, modules[1:]); err != nil {
		return nil, err
	}
	slices.SortFunc(modules[1:], func(a, b module) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Version, b.Version))
	})
	return write(modules)
}

// modulesOf returns the modules linked into a binary, the standard library first.
func modulesOf(tree string, binary []byte) ([]module, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, err
	}
	std, err := standardLibrary(tree, info.GoVersion)
	if err != nil {
		return nil, err
	}
	modules := []module{std}
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		if d.Version == "" {
			return nil, fmt.Errorf("module %s has no version: it was replaced by a directory, whose licence is not "+
				"known", d.Path)
		}
		modules = append(modules, module{Path: d.Path, Version: d.Version})
	}
	return modules, nil
}

// goCommand runs the go command in a tree, without the user's Go settings.
func goCommand(tree string, args ...string) ([]byte, error) {
	c := exec.Command("go", args...)
	c.Dir, c.Env = tree, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return out, fmt.Errorf("go %s: %w: %s%s", strings.Join(args[:2], " "), err, stderr.Bytes(), out)
	}
	return out, nil
}

// standardLibrary returns Go's standard library, if its version is the one with which the binary
// was built.
func standardLibrary(tree, version string) (module, error) {
	out, err := goCommand(tree, "env", "GOVERSION", "GOROOT")
	if err != nil {
		return module{}, err
	}
	have, root, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if have != version {
		return module{}, fmt.Errorf("the binary was built with %s, and the go command here is %s: build it again",
			version, have)
	}
	return module{"Go", version, root}, nil
}

// download sets the directory of each module.
func download(tree string, modules []module) error {
	if len(modules) == 0 {
		return nil
	}
	args := []string{"mod", "download", "-json"}
	for _, m := range modules {
		args = append(args, m.Path+"@"+m.Version)
	}
	out, err := goCommand(tree, args...)
	if err != nil {
		return err
	}
	dirs := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var m module
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("go mod download -json: %w", err)
		}
		dirs[m.Path] = m.Dir
	}
	for i := range modules {
		modules[i].Dir = dirs[modules[i].Path]
	}
	return nil
}

// names match files with legal texts: licences, and notices that a licence requires to be passed
// on. A module has at least one licence.
var (
	license = regexp.MustCompile(`(?i)^(licen[sc]e|copying)([.-].*)?$`)
	names   = regexp.MustCompile(`(?i)^(licen[sc]e|copying|copyright|notice|patents)([.-].*)?$`)
	// Code with such a name, and directories whose code is in no binary.
	source   = regexp.MustCompile(`\.(go|s|c|h)$`)
	notBuilt = regexp.MustCompile(`^([._].*|testdata|examples)$`)
)

// texts reads the legal files of a module and returns their paths within it, in the order of the
// names. Code that a module has copied has its licence beside it.
func (m module) texts() (paths []string, contents [][]byte, err error) {
	if m.Dir == "" {
		return nil, nil, fmt.Errorf("%v: its source is not in the module cache", m)
	}
	found := false
	err = filepath.WalkDir(m.Dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != m.Dir && (notBuilt.MatchString(d.Name()) || m.Path == "Go"):
			return fs.SkipDir // in Go, all linked code is under the licence in its root
		case d.IsDir() || !names.MatchString(d.Name()) || source.MatchString(d.Name()):
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(m.Dir, path)
		if err != nil {
			return err
		}
		found = found || license.MatchString(name) && len(bytes.TrimSpace(content)) > 0
		paths, contents = append(paths, filepath.ToSlash(name)), append(contents, content)
		return nil
	})
	if err == nil && !found {
		err = fmt.Errorf("%v has no licence text in its root directory (%s): it must not be distributed without one",
			m, m.Dir)
	}
	return paths, contents, err
}

// write writes all texts into one file, each once, below the modules and files that have it.
func write(modules []module) ([]byte, error) {
	type text struct {
		of      []string
		content string
	}
	var list []text
	var errs []error
	for _, m := range modules {
		paths, contents, err := m.texts()
		errs = append(errs, err)
		for i, path := range paths {
			of, content := m.String()+": "+path, strings.TrimSpace(string(contents[i]))
			at := slices.IndexFunc(list, func(t text) bool { return t.content == content })
			if at < 0 {
				at, list = len(list), append(list, text{content: content})
			}
			list[at].of = append(list[at].of, of)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "Licences and notices of the modules linked into this program: %d modules, %d texts.\n",
		len(modules), len(list))
	for _, t := range list {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(t.of, "\n"), t.content)
	}
	return b.Bytes(), nil
}
