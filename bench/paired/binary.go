package paired

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/serve/status"
)

// module is the import path of this project's commands, as in their build information.
const module = "sluice.dev/sluice/cmd/"

// Binary is a build of one of this project's commands.
type Binary struct {
	Path     string // absolute
	Version  string // as reported by the binary
	Revision string // of the status API; "" if the command has none
}

// Find checks the argument of --before: the binary of a command ("sluice", "sluice-bench"), or the
// directory that contains it after `make build`. It runs the binary once, for its version, after
// its build information (debug/buildinfo) has shown that it is one of this project's. Errors name
// the flag and the remedy.
func Find(ctx context.Context, path, command string) (b Binary, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("--before %s: %w", path, err)
		}
	}()
	if b.Path, err = filepath.Abs(path); err != nil {
		return b, err
	}
	if err := b.locate(command); err != nil {
		return b, err
	}
	if err := identify(b.Path, command); err != nil {
		return b, err
	}
	if err := unix.Access(b.Path, unix.X_OK); err != nil {
		return b, fmt.Errorf("cannot be executed: %w: chmod +x it, or name another build", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, b.Path, "--version").Output()
	if err != nil {
		return b, fmt.Errorf("it does not run on this machine: `%s --version`: %w: build it here", command, err)
	}
	b.Version = strings.TrimSpace(strings.TrimPrefix(string(out), command+" version "))
	if command != "sluice" {
		return b, nil
	}
	out, err = exec.CommandContext(ctx, b.Path, "version", "-o", "json").Output()
	var build status.Build
	if err == nil {
		err = json.Unmarshal(out, &build)
	}
	if err == nil && build.Revision == "" {
		err = errors.New("it has no revision")
	}
	if b.Revision = build.Revision; err != nil {
		return b, fmt.Errorf("its `sluice version -o json` cannot be read: %w: name a later build", err)
	}
	return b, nil
}

// locate completes a directory to the binary's path, and returns an error if there is no file.
func (b *Binary) locate(command string) error {
	at, err := os.Stat(b.Path)
	if err == nil && at.IsDir() {
		b.Path = filepath.Join(b.Path, command)
		if at, err = os.Stat(b.Path); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("there is no %s in this directory: run `make build` in the older tree and name its bin",
				command)
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no such file: run `make build` in the older tree and name its bin/%s", command)
	case err != nil:
		return err
	case !at.Mode().IsRegular():
		return fmt.Errorf("is not a file: name the %s of an older build", command)
	}
	return nil
}

// identify checks which program a file is.
func identify(path, command string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return fmt.Errorf("is no program of this project (%w): name the %s of an older build", err, command)
	}
	if info.Path != module+command {
		return fmt.Errorf("is %s, and %s is to be compared: name the %s of an older build", info.Path, module+command,
			command)
	}
	for _, s := range info.Settings {
		if want := map[string]string{"GOOS": runtime.GOOS, "GOARCH": runtime.GOARCH}[s.Key]; want != "" &&
			s.Value != want {
			return fmt.Errorf("is built for %s %s, and this machine is %s: build it here", s.Key, s.Value, want)
		}
	}
	return nil
}

// Same reports whether two files have the same content: then the comparison measures only noise.
func Same(a, b string) (bool, error) {
	x, err := os.ReadFile(a)
	if err != nil {
		return false, err
	}
	y, err := os.ReadFile(b)
	return err == nil && bytes.Equal(x, y), err
}
