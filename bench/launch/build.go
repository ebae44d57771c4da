package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"sluice.dev/sluice/bench/machine"
)

// Build builds the daemon from the tree into a directory, so that no stale binary is
// judged, and returns its path. Where one was built elsewhere (machine.Binary), it is that one.
func Build(dir string, race bool) (string, error) {
	if path := machine.Binary(); path != "" {
		return path, nil
	}
	path := filepath.Join(dir, "sluice")
	args, cgo := []string{"build", "-o", path}, "CGO_ENABLED=0" // as `make build` does
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
	c := exec.Command("go", "build", "-o", path, "sluice.dev/sluice/cmd/"+name)
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
