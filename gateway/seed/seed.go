// Package seed finds the seed of backend selection (maglev.seedFile, maglev.seed), and makes one
// where the configuration has none:
//
//	maglev.seedFile    if the file exists and is not empty: a Secret that all gateways mount
//	maglev.seed        if it is not empty
//	stateDir/maglev.json   drawn by this gateway; the next process reads it
//
// A client that knows the seed can compute which of its source ports lead to which backend, and
// send all its connections to one. So the empty text, which everybody knows, is never the seed.
package seed

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/maglev"
	"sluice.dev/sluice/internal/statefile"
	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/serve/status"
)

// Name is the name in stateDir of the file with a seed that was drawn.
const Name = "maglev.json"

// Condition is the name of the condition that Seed.View returns.
const Condition = "maglev-seed"

// version must change with the meaning of what is in the file.
const version = 1

type content struct {
	statefile.Version
	Seed string `json:"seed"`
}

// Origin is where a seed comes from.
type Origin string

// The origins.
const (
	File          Origin = "file"          // maglev.seedFile
	Configuration Origin = "configuration" // maglev.seed
	Drawn         Origin = "drawn"         // by this gateway: no other one has it
)

// MinLength is the length from which on a seed counts as one that cannot be guessed, in characters:
// 32 hexadecimal digits are 128 bits.
const MinLength = 32

// Seed is the seed in use. It does not have the text, so that no message can contain it.
type Seed struct {
	Key         [2]uint64 // of services.Snapshot.SelectKey and maglev.Table
	Fingerprint string    // equal for equal seeds
	Origin      Origin
	// Path is the file that has the seed; Missing is maglev.seedFile if that does not exist or is
	// empty.
	Path, Missing string
	short         bool // shorter than MinLength
	open          bool // others than the file's owner and group may read Path, or it is a ConfigMap
	// cluster: the gateway belongs to a cluster, which may have others.
	cluster bool
}

// ErrNone is returned by Find where the configuration has no seed and none was drawn yet.
var ErrNone = errors.New("the configuration has no seed, and the gateway has drawn none yet")

// Find returns the seed that a gateway with this configuration, read from file, uses. It writes
// nothing. With ErrNone the seed has no key, but a View.
func Find(c *config.Configuration, file string) (Seed, error) {
	s := Seed{cluster: c.Kubernetes.Enabled}
	text, err := readFile(c.Maglev.SeedFile)
	switch {
	case err != nil:
		return s, fmt.Errorf("maglev.seedFile: %w", err)
	case text != "":
		return s.of(text, File, c.Maglev.SeedFile), nil
	}
	s.Missing = c.Maglev.SeedFile
	if c.Maglev.Seed != "" {
		s = s.of(c.Maglev.Seed, Configuration, file)
		s.open = s.open || c.Kubernetes.Enabled
		return s, nil
	}
	path := filepath.Join(c.StateDir, Name)
	var drawn content
	if err := statefile.Load(path, version, &drawn); err != nil {
		return s, fmt.Errorf("seed: %w", err)
	}
	if drawn.Seed == "" {
		s.Origin = Drawn
		return s, ErrNone
	}
	return s.of(drawn.Seed, Drawn, path), nil
}

// Take is Find for the process that owns stateDir: it draws a seed where there is none, and keeps
// it for the next process.
func Take(c *config.Configuration, file string) (Seed, error) {
	s, err := Find(c, file)
	if !errors.Is(err, ErrNone) {
		return s, err
	}
	drawn := content{Version: statefile.Version{Version: version}, Seed: rand.Text() + rand.Text()}
	if err := statefile.Save(filepath.Join(c.StateDir, Name), &drawn); err != nil {
		return s, fmt.Errorf("seed: %w", err)
	}
	return Find(c, file)
}

// readFile returns the seed in a file; "" if there is no file.
func readFile(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := trusted.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(text)), err
}

func (s Seed) of(text string, origin Origin, path string) Seed {
	s.Key, s.Fingerprint = maglev.Key(text), maglev.Fingerprint(text)
	s.Origin, s.Path, s.short = origin, path, len(text) < MinLength
	if info, err := os.Stat(path); err == nil {
		s.open = info.Mode()&0o004 != 0
	}
	return s
}

// View describes the seed as a condition. It is a warning where a client may know the seed, or
// where the gateways of a cluster have different ones.
func (s Seed) View() status.ConditionView {
	var why []string
	if s.open {
		why = append(why, s.Path+" has it, which others may read: a client that knows it can choose its backend. "+
			"Move a new one to a file of maglev.seedFile, such as a Secret")
	}
	if s.short {
		why = append(why, fmt.Sprintf("it is shorter than %d characters and may be found by trying", MinLength))
	}
	if s.Missing != "" {
		why = append(why, "maglev.seedFile "+s.Missing+" does not exist or is empty")
	}
	from := map[Origin]string{
		File: "from " + s.Path, Configuration: "from the configuration", Drawn: "drawn by this gateway",
	}[s.Origin]
	text := fmt.Sprintf("the seed of backend selection is %s, fingerprint %s", from, s.Fingerprint)
	if s.Fingerprint == "" {
		text = "the seed of backend selection will be drawn by this gateway"
	}
	if s.Origin == Drawn {
		text += ": another gateway chooses other backends for the same client"
		if s.cluster && s.Missing == "" {
			why = append(why, "set maglev.seedFile to a Secret that all gateways mount")
		}
	}
	if len(why) > 0 {
		return status.Warning(Condition, text+"; "+strings.Join(why, "; "))
	}
	return status.OK(Condition, text)
}
