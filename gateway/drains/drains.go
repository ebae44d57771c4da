// Package drains stores the operator's drains for the next process, in a file of stateDir.
//
// The drains are not in the flow table: an operator can read the file, a table with another layout
// does not lose it, and a clean stop, which deletes the table, keeps it. Like the table it is on a
// tmpfs and ends with the machine.
package drains

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/internal/statefile"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
)

// Name is the file's name in stateDir.
const Name = "drains.json"

// version must change when the meaning of the file's fields changes.
const version = 1

type content struct {
	statefile.Version
	Drains []string `json:"drains"` // address or address:port
}

// Load reads the drains that the previous process saved in stateDir; none if there is no file.
func Load(stateDir string) (list []compiler.Drain, err error) {
	path := filepath.Join(stateDir, Name)
	var c content
	if err := statefile.Load(path, version, &c); err != nil {
		return nil, err
	}
	for _, s := range c.Drains {
		e, err := status.ParseEndpoint(s)
		if err != nil || !e.Prefix.IsSingleIP() {
			return nil, fmt.Errorf("%s: %q is neither an address nor address:port", path, s)
		}
		list = append(list, compiler.Drain{Addr: header.AddrFrom(e.Prefix.Addr()), Port: e.Port})
	}
	return list, nil
}

// Save replaces the drains saved in stateDir atomically. Without drains it removes the file.
func Save(stateDir string, list []compiler.Drain) error {
	path := filepath.Join(stateDir, Name)
	if len(list) == 0 {
		return statefile.Remove(path)
	}
	c := content{Version: statefile.Version{Version: version}}
	for _, d := range list {
		s := d.Addr.Netip().String()
		if d.Port != 0 {
			s = netip.AddrPortFrom(d.Addr.Netip(), d.Port).String()
		}
		c.Drains = append(c.Drains, s)
	}
	return statefile.Save(path, &c)
}
