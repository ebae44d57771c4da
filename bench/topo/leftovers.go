package topo

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

const (
	netnsDir = "/run/netns"
	bpfDir   = "/sys/fs/bpf"
)

// Leftovers finds what tests and demos may have left on the machine, of any
// network: names of namespaces, processes, interfaces in the namespace of the
// caller, and BPF pins. It is empty on a clean machine where nothing runs.
func Leftovers() ([]string, error) {
	var out []string
	for _, dir := range [...]struct{ path, kind, prefix string }{
		{netnsDir, "namespace", Prefix}, {bpfDir, "pin", "sluice"},
	} {
		names, err := namesIn(dir.path, dir.prefix)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			out = append(out, dir.kind+" "+name)
		}
	}
	for _, p := range processesWith(environmentTag + "=") {
		out = append(out, fmt.Sprintf("process %d", p))
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("read interfaces: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		if strings.HasPrefix(a.Name, "sluice") {
			out = append(out, "interface "+a.Name)
		}
		if a.Xdp != nil && a.Xdp.Attached {
			out = append(out, "XDP program on "+a.Name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// Leftovers is the same for this network: after Close it must be empty.
func (n *Net) Leftovers() ([]string, error) {
	names, err := namesIn(netnsDir, Prefix+n.ID)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, name := range names {
		out = append(out, "namespace "+name)
	}
	for _, p := range processesWith(environmentTag + "=" + n.ID) {
		out = append(out, fmt.Sprintf("process %d", p))
	}
	return out, nil
}

func namesIn(dir, prefix string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// processesWith finds processes by what their environment was when they started.
// Those that end while we look, and those we may not look at, are not listed.
func processesWith(tag string) []int {
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is well-formed
	var pids []int
	for _, f := range files {
		env, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(append([]byte{0}, env...), append([]byte{0}, tag...)) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(f, "/proc/%d/environ", &pid); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}
