package denials

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/internal/statefile"
)

// Name is the file's name in stateDir.
const Name = "denied.json"

// version must change when the meaning of the file's fields changes.
const version = 1

type content struct {
	statefile.Version
	Denied []entry `json:"denied"`
}

type entry struct {
	Prefix netip.Prefix `json:"prefix"`
	Until  time.Time    `json:"until,omitzero"`
}

// load reads the operator's list that the previous process saved in stateDir; empty if there is no
// file.
func load(stateDir string) (map[netip.Prefix]time.Time, error) {
	path := filepath.Join(stateDir, Name)
	var c content
	if err := statefile.Load(path, version, &c); err != nil {
		return nil, err
	}
	list := map[netip.Prefix]time.Time{}
	for _, e := range c.Denied {
		if problem := config.DenialProblem(e.Prefix); problem != "" {
			return nil, fmt.Errorf("%s: an entry %s", path, problem)
		}
		list[e.Prefix] = e.Until
	}
	return list, nil
}

// save replaces the list saved in stateDir atomically. Without entries it removes the file.
func save(stateDir string, list map[netip.Prefix]time.Time) error {
	path := filepath.Join(stateDir, Name)
	if len(list) == 0 {
		return statefile.Remove(path)
	}
	c := content{Version: statefile.Version{Version: version}}
	for p, until := range list {
		c.Denied = append(c.Denied, entry{p, until})
	}
	slices.SortFunc(c.Denied, func(a, b entry) int { return a.Prefix.Compare(b.Prefix) })
	return statefile.Save(path, &c)
}
