package assign

import (
	"net/netip"
	"path/filepath"

	"sluice.dev/sluice/internal/statefile"
)

// File is the name, in stateDir, of the file with what Services were given.
const File = "addresses.json"

// version must change with the meaning of what is in the file.
const version = 1

type content struct {
	statefile.Version
	Services map[string][]netip.Addr `json:"services"` // by namespace/name
}

// Load reads what is saved in stateDir; nothing if there is no file.
func Load(stateDir string) (map[string][]netip.Addr, error) {
	var c content
	if stateDir != "" {
		if err := statefile.Load(filepath.Join(stateDir, File), version, &c); err != nil {
			return nil, err
		}
	}
	if c.Services == nil {
		c.Services = map[string][]netip.Addr{}
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
		return statefile.Remove(path)
	}
	return statefile.Save(path, &content{statefile.Version{Version: version}, kept})
}
