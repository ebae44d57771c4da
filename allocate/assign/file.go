package assign

import (
	"net/netip"
	"path/filepath"

	"sluice.dev/sluice/internal/statefile"
)

// File is the name, in stateDir, of the file with the addresses given to Services.
const File = "addresses.json"

// version must change when the meaning of the content changes.
const version = 1

type content struct {
	statefile.Version
	Services map[string][]netip.Addr `json:"services"` // by namespace/name
}

// Load reads the saved addresses in stateDir; an empty map if there is no file.
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

// Save replaces the file in stateDir atomically; it removes the file if kept is empty.
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
