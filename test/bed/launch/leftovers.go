package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/journal"
)

// Leftovers returns the files that an ended daemon left in its directory and the objects that it
// left on its host: none, if it ended well.
func (g *Gateway) Leftovers() (left []string, err error) {
	known := append([]string{"lo"}, g.config.Interfaces...)
	for _, i := range g.config.Host.Interfaces {
		known = append(known, i.Name)
	}
	err = g.config.Host.Run(func() error {
		left, err = linkLeftovers(known)
		return err
	})
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	if strings.Contains(string(mounts), g.dir) {
		left = append(left, "a mount under "+g.dir)
	}
	entries, err := os.ReadDir(g.dir)
	if err != nil {
		return nil, err
	}
	ours := []string{configFile, logFile, manifestsDir}
	for _, e := range entries {
		if !slices.Contains(ours, e.Name()) && !(e.Name() == stateDir && onlyEvents(filepath.Join(g.dir, stateDir))) {
			left = append(left, "file "+e.Name())
		}
	}
	if g.Running() {
		left = append(left, fmt.Sprintf("process %d", g.PID()))
	}
	return left, nil
}

// onlyEvents reports whether a directory has only the files of the journal, which stay for the next
// process, like drains.
func onlyEvents(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && !slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return e.Name() != journal.Name && e.Name() != journal.OldName
	})
}

// linkLeftovers returns interfaces that are not in known, and programs on interfaces that are, in
// the calling thread's namespace.
func linkLeftovers(known []string) (left []string, err error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("read interfaces: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		if !slices.Contains(known, a.Name) && l.Type() != "vlan" { // of which the daemon makes none
			left = append(left, "interface "+a.Name)
		}
		if a.Xdp != nil && a.Xdp.Attached {
			left = append(left, "XDP program on "+a.Name)
		}
		for _, t := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			programs, err := link.QueryPrograms(link.QueryOptions{Target: a.Index, Attach: t})
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("read programs of %s: %w", a.Name, err)
			}
			if programs != nil && len(programs.Programs) > 0 {
				left = append(left, fmt.Sprintf("%s program on %s", t, a.Name))
			}
		}
	}
	return left, nil
}
