package assign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"sluice.dev/sluice/internal/trusted"
)

// File is the name, in stateDir, of the file with what Services were given.
const File = "addresses.json"

// version must change with the meaning of what is in the file.
const version = 1

type content struct {
	Version  int                     `json:"version"`
	Services map[string][]netip.Addr `json:"services"` // by namespace/name
}

// Load reads what is saved in stateDir; nothing if there is no file.
func Load(stateDir string) (map[string][]netip.Addr, error) {
	kept := map[string][]netip.Addr{}
	if stateDir == "" {
		return kept, nil
	}
	path := filepath.Join(stateDir, File)
	text, err := trusted.ReadState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return kept, nil
	}
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var c content
	if err := d.Decode(&c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if c.Version != version {
		return nil, fmt.Errorf("%s: version %d, this program has %d", path, c.Version, version)
	}
	if c.Services == nil {
		c.Services = kept
	}
	return c.Services, nil
}

// Save replaces what is saved in stateDir, in one step. With nothing to save there is no file.
func Save(stateDir string, kept map[string][]netip.Addr) error {
	if stateDir == "" {
		return nil
	}
	path := filepath.Join(stateDir, File)
	if len(kept) == 0 {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := json.Marshal(content{version, kept})
	if err != nil {
		return err
	}
	return trusted.WriteState(path, append(text, '\n'))
}
