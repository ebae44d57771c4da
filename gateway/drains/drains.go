// Package drains keeps the operator's drains for the next process, in a file of stateDir.
//
// A file of its own, and not the flow table: an operator can read it, it outlives a table of
// another layout, and a clean stop, which deletes the table, leaves it. Like the table it is on a
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

// version must change with the meaning of what is in the file.
const version = 1

type content struct {
	statefile.Version
	Drains []string `json:"drains"` // an address, or address:port
}

// Load reads what a predecessor has saved in stateDir; nothing if there is no file.
func Load(stateDir string) (list []compiler.Drain, err error) {
	path := filepath.Join(stateDir, Name)
	var c content
	if err := statefile.Load(path, version, &c); err != nil {
		return nil, err
	}
	for _, s := range c.Drains {
		e, err := status.ParseEndpoint(s)
		if err != nil || !e.Prefix.IsSingleIP() {
			return nil, fmt.Errorf("%s: %q is no address or address:port", path, s)
		}
		list = append(list, compiler.Drain{Addr: header.AddrFrom(e.Prefix.Addr()), Port: e.Port})
	}
	return list, nil
}

// Save replaces what is saved in stateDir, in one step. Without drains there is no file.
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
