package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sluice.dev/sluice/test/bed/machine"
)

// Build builds the daemon from the tree into a directory, so that no stale binary is
// judged, and returns its path. Where one was built elsewhere (machine.Binary), it is that one. It
// is compiled as by `make build`, whose packages are in the build cache then.
func Build(dir string, race bool) (string, error) {
	if path := machine.Binary(); path != "" {
		return path, nil
	}
	path := filepath.Join(dir, "sluice")
	args, cgo := []string{"build", "-trimpath", "-o", path}, "CGO_ENABLED=0"
	if race {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	}
	c := exec.Command("go", append(args, "sluice.dev/sluice/cmd/sluice")...)
	c.Env = append(os.Environ(), cgo)
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build sluice: %w\n%s", err, out)
	}
	return path, nil
}

// BuildCommand builds another command of the tree, such as sluice-announcer, into a directory, and
// returns its path.
func BuildCommand(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	c := exec.Command("go", "build", "-trimpath", "-o", path, "sluice.dev/sluice/cmd/"+name)
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return path, nil
}

// Find returns the absolute path of a daemon's binary, or what to do without one, or without root.
func Find(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("the gateway's binary: %w; build it with `make build`, or name it with --sluice", err)
	}
	if os.Geteuid() != 0 {
		return "", errors.New("network namespaces, XDP and AF_XDP need root")
	}
	return path, nil
}

// Change replaces a text of the tree's source, which must be there once. With an empty From it adds
// a file.
type Change struct{ File, From, To string }

// BuildChanged builds the gateway from the tree with some changes, which the tree itself does not
// get (go build -overlay): a version that does not exist yet.
func BuildChanged(dir, name string, changes ...Change) (string, error) {
	return buildChanged(dir, name, "sluice", changes)
}

func buildChanged(dir, name, command string, changes []Change) (string, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("build %s: where the tree is: %w", name, err)
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for _, c := range changes {
		file := filepath.Join(strings.TrimSpace(string(root)), c.File)
		with, changed := overlay.Replace[file]
		if !changed {
			with = filepath.Join(dir, fmt.Sprint(name, len(overlay.Replace), ".go"))
			overlay.Replace[file] = with
		}
		var text []byte
		if c.From != "" {
			if text, err = os.ReadFile(map[bool]string{false: file, true: with}[changed]); err != nil {
				return "", fmt.Errorf("build %s: %w", name, err)
			}
		}
		if n := strings.Count(string(text), c.From); n != 1 && c.From != "" {
			return "", fmt.Errorf("build %s: %s has %q %d times, want it once", name, c.File, c.From, n)
		}
		if err := os.WriteFile(with, []byte(strings.Replace(string(text), c.From, c.To, 1)), 0o600); err != nil {
			return "", fmt.Errorf("build %s: %w", name, err)
		}
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	file, path := filepath.Join(dir, name+".json"), filepath.Join(dir, name)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	c := exec.Command("go", "build", "-overlay", file, "-o", path, "sluice.dev/sluice/cmd/"+command)
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return path, nil
}
