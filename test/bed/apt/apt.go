// Package apt fetches packages of Debian without installing them: their programs run from where
// they are unpacked, and nothing that the system's own apt knows is read or written but where its
// packages come from.
package apt

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Source is where the machine gets Debian's packages from: one entry of sources.list(5).
type Source struct {
	URI      string
	SignedBy string // a keyring; empty: apt trusts all of its keyrings
	Suites   []string
}

// debianSuites are the suites that identify a source as Debian's main archive: an archive with one
// of them has the others, too.
var debianSuites = []string{"bookworm", "trixie", "forky", "oldstable", "stable", "testing", "sid", "unstable"}

// MachineSource is the first source of Debian's archive in the sources.list(5) files under etc,
// usually /etc/apt.
func MachineSource(etc string) (Source, error) {
	files := []string{filepath.Join(etc, "sources.list")}
	for _, pattern := range []string{"*.sources", "*.list"} {
		more, err := filepath.Glob(filepath.Join(etc, "sources.list.d", pattern))
		if err != nil {
			return Source{}, err
		}
		files = append(files, more...)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return Source{}, err
		}
		parse := parseList
		if strings.HasSuffix(name, ".sources") {
			parse = parseStanzas
		}
		for _, s := range parse(string(text)) {
			if slices.ContainsFunc(s.Suites, func(suite string) bool { return slices.Contains(debianSuites, suite) }) {
				return s, nil
			}
		}
	}
	return Source{}, fmt.Errorf("%s: no source of Debian's archive (%s); packages are fetched from there, add one",
		etc, strings.Join(debianSuites, ", "))
}

// parseStanzas reads deb822 style: stanzas of "Field: value", separated by empty lines.
func parseStanzas(text string) (sources []Source) {
	for stanza := range strings.SplitSeq(text, "\n\n") {
		fields := map[string]string{}
		for line := range strings.Lines(stanza) {
			if name, value, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, "#") &&
				!strings.HasPrefix(line, " ") {
				fields[strings.ToLower(name)] = strings.TrimSpace(value)
			}
		}
		uris := strings.Fields(fields["uris"])
		if slices.Contains(strings.Fields(fields["types"]), "deb") && len(uris) > 0 && fields["enabled"] != "no" {
			sources = append(sources, Source{URI: uris[0], SignedBy: fields["signed-by"],
				Suites: strings.Fields(fields["suites"])})
		}
	}
	return sources
}

// parseList reads one-line style: "deb [ option=value ... ] uri suite component ...".
func parseList(text string) (sources []Source) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb ")
		if !ok {
			continue
		}
		var s Source
		if options, after, found := strings.Cut(rest, "]"); found && strings.HasPrefix(strings.TrimSpace(options),
			"[") {
			for option := range strings.FieldsSeq(strings.TrimLeft(options, " [")) {
				if value, ok := strings.CutPrefix(option, "signed-by="); ok {
					s.SignedBy = value
				}
			}
			rest = after
		}
		if f := strings.Fields(rest); len(f) >= 2 {
			s.URI, s.Suites = f[0], f[1:2]
			sources = append(sources, s)
		}
	}
	return sources
}

// Apt is an apt of its own: sources, lists, archives and state lie in one directory. It believes
// that no package is installed, so that it fetches a package together with its dependencies.
type Apt struct {
	Dir    string // of all that is its own
	Suites []string
	env    []string
}

// Use runs f with an apt of some suites, the machine's own if none is named. Its directory is gone
// afterwards.
func Use(ctx context.Context, dir string, suites []string, f func(*Apt) error) (err error) {
	from, err := MachineSource("/etc/apt")
	if err != nil {
		return err
	}
	if len(suites) == 0 {
		suites = from.Suites
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	a, err := open(ctx, dir, from, suites)
	if err != nil {
		return err
	}
	return f(a)
}

// open makes the directory and reads the lists of some suites.
func open(ctx context.Context, dir string, from Source, suites []string) (*Apt, error) {
	env := append(os.Environ(), "APT_CONFIG="+filepath.Join(dir, "apt.conf"), "LC_ALL=C")
	a := &Apt{Dir: dir, Suites: suites, env: env}
	for _, d := range []string{"lists/partial", "archives/partial", "parts"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	var list strings.Builder
	for _, suite := range suites {
		options := ""
		if from.SignedBy != "" {
			options = "[signed-by=" + from.SignedBy + "] "
		}
		fmt.Fprintf(&list, "deb %s%s %s main\n", options, from.URI, suite)
	}
	// The machine's way to the network, a proxy for instance, is ours, too; nothing else of its
	// configuration is.
	acquire, err := exec.CommandContext(ctx, "apt-config", "dump", "Acquire").Output()
	if err != nil {
		return nil, fmt.Errorf("apt-config: %w; packages are fetched by apt, so this needs Debian", err)
	}
	conf := string(acquire) + fmt.Sprintf(`
Dir::Etc::Main "/dev/null";
Dir::Etc::Parts "%[1]s/parts";
Dir::Etc::SourceList "%[1]s/sources.list";
Dir::Etc::SourceParts "%[1]s/parts";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "%[1]s/parts";
Dir::State "%[1]s";
Dir::State::Lists "%[1]s/lists";
Dir::State::Status "%[1]s/status";
Dir::Cache "%[1]s";
Dir::Cache::Archives "%[1]s/archives";
Acquire::Languages "none";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
`, dir)
	for name, text := range map[string]string{"apt.conf": conf, "sources.list": list.String(), "status": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	if _, err := a.run(ctx, "apt-get", "-qq", "update"); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Apt) run(ctx context.Context, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Env, c.Dir = a.env, filepath.Join(a.Dir, "archives")
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return string(out), nil
}

// Depends are the names of the packages that a package depends on, of several choices each.
func (a *Apt) Depends(ctx context.Context, name string) (names []string, err error) {
	out, err := a.run(ctx, "apt-cache", "depends", "--important", name)
	if err != nil {
		return nil, err
	}
	for s := bufio.NewScanner(strings.NewReader(out)); s.Scan(); {
		_, dependency, ok := strings.Cut(s.Text(), "Depends: ")
		if ok && !strings.HasPrefix(dependency, "<") {
			names = append(names, dependency)
		}
	}
	return names, nil
}

// Download fetches packages, and nothing that they depend on.
func (a *Apt) Download(ctx context.Context, names ...string) error {
	_, err := a.run(ctx, "apt-get", append([]string{"-qq", "download"}, names...)...)
	return err
}

// DownloadAll fetches packages of a suite and all that they depend on.
func (a *Apt) DownloadAll(ctx context.Context, suite string, names ...string) error {
	_, err := a.run(ctx, "apt-get", append([]string{"-qq", "-y", "-d", "-t", suite, "install"}, names...)...)
	return err
}

// Unpack unpacks all that was fetched into a directory. No script of a package runs.
func (a *Apt) Unpack(ctx context.Context, into string) error {
	packages, err := filepath.Glob(filepath.Join(a.Dir, "archives", "*.deb"))
	if err != nil {
		return err
	}
	for _, p := range packages {
		if _, err := a.run(ctx, "dpkg-deb", "-x", p, into); err != nil {
			return err
		}
	}
	return nil
}
